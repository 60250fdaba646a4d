"""Where the pages of a prompt are: the engine's thread looks in its tree, the look-up's thread in the store.

Asked for `explain` alone, never on the way of a request.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

from stratakv.actors.worker.seeker import Lookup
from stratakv.cluster.explain import ExplainAnswer, Stretch
from stratakv.storage.hierarchy import Hierarchy
from stratakv.storage.tiers import PageKey
from stratakv.storage.wanted import Stored, choose, first_unknown

Answer = Callable[[ExplainAnswer], None]


class Explainer:
    """An `ExplainPages` over the hierarchy of an engine.

    `on_engine` has its argument called soon by the engine's thread; `lookup` is None without a store; `minimum` is the
    fewest pages that are worth a prefetch.
    """

    def __init__(
        self,
        on_engine: Callable[[Callable[[], None]], None],
        hierarchy: Hierarchy,
        lookup: Lookup | None,
        minimum: int,
    ):
        self._on_engine, self._hierarchy, self._lookup, self._minimum = on_engine, hierarchy, lookup, minimum

    def __call__(self, keys: list[PageKey], answer: Answer) -> None:
        """See ExplainPages. Waits for the step that the engine is in."""
        self._on_engine(lambda: self._look(keys, answer))

    def _look(self, keys: Sequence[PageKey], answer: Answer) -> None:
        held = self._hierarchy.find(keys).held
        if self._lookup is None or held == len(keys):
            answer(self._compose(keys, {}))
            return
        firsts = first_unknown(self._hierarchy, keys)

        def told(stored: Stored) -> None:
            self._on_engine(lambda: answer(self._compose(keys, stored)))

        self._lookup.ask(keys, firsts, told)

    def _compose(self, keys: Sequence[PageKey], stored: Stored) -> ExplainAnswer:
        """What a request of these keys would find now, with what the store has."""
        wanted = choose(self._hierarchy, keys, b"", stored, self._minimum)
        found = wanted.found
        reasons = list(self._hierarchy.misses(keys, found))
        promised = max(0, wanted.promised - found.held)
        if wanted.stretch is None:
            reasons[:promised] = [wanted.reason] * promised
            promised = 0
        stretches = [Stretch(len(list(run)), str(reason)) for reason, run in groupby(reasons[promised:])]
        return ExplainAnswer(
            device=found.device, host=found.held - found.device, store=promised, misses=tuple(stretches)
        )
