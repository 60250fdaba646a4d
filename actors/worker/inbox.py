"""What the endpoint's thread and the engine say to each other: the seam between a head's wire and its work."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from stratakv.cluster.explain import ExplainAnswer, Stretch
from stratakv.cluster.messages import Delta, Generate
from stratakv.storage.residence import Holdings
from stratakv.storage.tiers import Miss, PageKey


class Emission(NamedTuple):
    """What a step added to one request: `client` as it came with `submit`."""

    client: bytes
    delta: Delta


class Load(NamedTuple):
    """How busy the engine is."""

    running: int
    waiting: int


class Emitted(NamedTuple):
    """What step number `step` emitted."""

    step: int
    emissions: Sequence[Emission]


class SnapshotAnswer(NamedTuple):
    """What is held, for a router that watches."""

    client: bytes
    holdings: Holdings


class Told(NamedTuple):
    """Where pages are, for the gateway that asked under `id`."""

    client: bytes
    id: str
    answer: ExplainAnswer


class EngineInbox(Protocol):
    """What the endpoint's thread tells the engine. All must return at once and be safe to call from that thread."""

    def submit(self, client: bytes, request: Generate, keys: list[PageKey]) -> None:
        """A valid new request with the keys of its full pages. A refusal is emitted as a Delta with a Failure."""

    def abort(self, client: bytes, id: str) -> None:
        """Free all that this request holds. Ids that are unknown or finished are ignored."""

    def watch(self, client: bytes) -> None:
        """A router wants to know of the pages: answer soon, from the engine's thread, with `deliver_events` for all
        changes so far and then `deliver_snapshot` for this client."""


class ExplainPages(Protocol):
    """Says where pages are. Called from the endpoint's thread."""

    def __call__(self, keys: list[PageKey], answer: Callable[[ExplainAnswer], None]) -> None:
        """Look for `keys`, a chain from the first page on, and call `answer` once, from whatever thread. Returns at
        once and changes nothing."""


def holds_nothing(keys: list[PageKey], answer: Callable[[ExplainAnswer], None]) -> None:
    """An `ExplainPages` for a head that keeps no pages."""
    misses = (Stretch(len(keys), str(Miss.NEVER_SEEN)),) if keys else ()
    answer(ExplainAnswer(misses=misses))
