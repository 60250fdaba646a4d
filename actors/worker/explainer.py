"""Where the pages of a prompt are: the engine's thread looks in its tree, the look-up's thread in the store.

Asked for `explain` alone, never on the way of a request.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from stratakv.cluster.explain import ExplainAnswer, Stretch
from stratakv.storage.hierarchy import Hierarchy
from stratakv.storage.tiers import Miss, PageKey


class Here(NamedTuple):
    """How many pages of a chain are on the device and held, from the first on, and for each page after the held ones
    why it is not."""

    device: int
    held: int
    reasons: Sequence[Miss]


class StoreLookup(Protocol):
    """Asks the store; see lookup.py."""

    def ask(self, keys: Sequence[PageKey], answer: Callable[[int], None]) -> None:
        """Call `answer` with how many of `keys`, from the first on, can be restored; from any thread."""


def pages_here(hierarchy: Hierarchy, keys: Sequence[PageKey]) -> Here:
    """Where `keys` are in `hierarchy`. Changes nothing; only on the engine's thread."""
    match = hierarchy.tree.match(keys)
    return Here(
        match.device, match.held, [hierarchy.room.departures.reason(key) for key in keys[match.held :]]
    )


class Explainer:
    """An `ExplainPages` over an engine.

    `on_engine` has its argument called soon by the engine's thread; `here` looks in the tree there; `lookup` is None
    without a store; `minimum` is the fewest pages that are worth a prefetch.
    """

    def __init__(
        self,
        on_engine: Callable[[Callable[[], None]], None],
        here: Callable[[Sequence[PageKey]], Here],
        lookup: StoreLookup | None,
        minimum: int,
    ):
        self._on_engine, self._here, self._lookup, self._minimum = on_engine, here, lookup, minimum

    def __call__(self, keys: list[PageKey], answer: Callable[[ExplainAnswer], None]) -> None:
        """See ExplainPages. Waits for the step that the engine is in."""
        self._on_engine(lambda: self._look(keys, answer))

    def _look(self, keys: list[PageKey], answer: Callable[[ExplainAnswer], None]) -> None:
        here = self._here(keys)
        if self._lookup is None or here.held == len(keys):
            answer(self._compose(here, 0))
        else:
            self._lookup.ask(keys[here.held :], lambda pages: answer(self._compose(here, pages)))

    def _compose(self, here: Here, stored: int) -> ExplainAnswer:
        reasons = list(here.reasons)
        if stored < self._minimum:
            reasons[:stored] = [Miss.BELOW_THRESHOLD] * stored
            stored = 0
        stretches = [Stretch(len(list(run)), str(reason)) for reason, run in groupby(reasons[stored:])]
        return ExplainAnswer(
            device=here.device, host=here.held - here.device, store=stored, misses=tuple(stretches)
        )
