"""The outermost layer of the app: counts every request, logs it in one sentence, and turns surprises into a 500."""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stratakv.cluster.metrics import Metrics

_log = logging.getLogger("stratakv.access")
_QUIET = frozenset({"/health", "/ready", "/metrics"})
_KEY = "stratakv.observation"
CLIENT_GONE = 499
"""The status that is counted when the client left before its answer was complete."""


@dataclass(slots=True)
class Observation:
    """What is known of one HTTP request. Handlers write to it; it is read once, when the request is over."""

    began: float = field(default_factory=time.monotonic)
    """When the request arrived, in seconds of the monotonic clock."""
    sentence: str | None = None
    """What the access log says of an answer; by default the method, path and status."""
    failure: str | None = None
    """What the access log says of an error that has no sentence of its own."""
    status: int | None = None
    """Overrides the status that was sent: a stream that broke was still sent as 200."""
    until_answered: ExitStack = field(default_factory=ExitStack)
    """Closed when the answer is complete or the client is gone."""

    def fail(self, status: int, message: str) -> None:
        """The request ended in an error. A sentence that was written before stays."""
        self.status = status
        self.failure = f"ended with {status}: {message}"


def observation(scope: Scope) -> Observation:
    """The observation of the request that `scope` belongs to."""
    found = scope[_KEY]
    assert isinstance(found, Observation)
    return found


class Observer:
    """ASGI middleware around everything else. `on_surprise` gives the body of the answer to an exception."""

    def __init__(self, app: ASGIApp, metrics: Metrics, on_surprise: Callable[[], bytes]):
        self._app = app
        self._metrics = metrics
        self._on_surprise = on_surprise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; an exception never reaches the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen = scope[_KEY] = Observation()
        sent: int | None = None

        async def watch(message: Message) -> None:
            nonlocal sent
            if message["type"] == "http.response.start":
                sent = message["status"]
            await send(message)

        try:
            with seen.until_answered:
                await self._app(scope, receive, watch)
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            seen.fail(500, "the server failed; see the traceback")
            if sent is None:
                await _answer(send, 500, self._on_surprise())
        finally:
            self._finish(scope, seen, seen.status or sent or CLIENT_GONE)

    def _finish(self, scope: Scope, seen: Observation, status: int) -> None:
        route = scope.get("route")
        path = route.path if route is not None else "unknown"
        self._metrics.request(path, status)
        level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
        outcome = seen.failure or f"answered with {status}"
        sentence = seen.sentence or f"{scope['method']} {scope['path']} {outcome}"
        # Paths and messages hold what clients wrote; a line of the log is one request all the same.
        _log.log(level, "%s", "".join(char if char.isprintable() else "?" for char in sentence))


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
