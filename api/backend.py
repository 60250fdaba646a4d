"""The seam between HTTP and the cluster: what the app asks of whoever runs the model."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from stratakv.cluster.messages import Delta, Generate, ModelCard


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
