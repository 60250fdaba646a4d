"""The seam between HTTP and the cluster: what the app asks of whoever runs the model."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stratakv.cluster.explain import ExplainAnswer
from stratakv.cluster.messages import Delta, Generate, ModelCard
from stratakv.storage.tiers import PageKey


class BackendUnavailable(Exception):
    """No replica can take or finish the request now: HTTP 503 with `Retry-After: retry_after` seconds."""

    def __init__(self, message: str, retry_after: int = 1):
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """What `/ready` and `/metrics` tell of the cluster."""

    replicas_ready: int
    replicas_total: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """Where one replica has the pages of a prompt; `answer` is None when it did not say, and `trouble` why."""

    replica: int
    answer: ExplainAnswer | None = None
    trouble: str | None = None


class Backend(Protocol):
    """Runs requests. All methods are called on the app's event loop."""

    def card(self) -> ModelCard | None:
        """The model served, or None until a replica has been ready once."""

    def status(self) -> BackendStatus:
        """Counts of now; never blocks."""

    def generate(self, request: Generate) -> AsyncGenerator[Delta]:
        """Send `request` and yield its deltas; the last has `finish` or `failure`.

        Raises BackendUnavailable before the first delta when no replica is ready, or later when the one that ran it
        died. Closing the iterator early (aclose, cancellation) aborts the request and frees all it held.
        """

    async def explain(self, keys: Sequence[PageKey], deadline: float) -> list[ReplicaView]:
        """Where each replica has the pages `keys`, a chain from the first page on; in order of the replicas.

        A replica that does not answer within `deadline` seconds is in the list without an answer. Raises
        BackendUnavailable when there is none to ask.
        """
