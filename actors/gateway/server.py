"""How the gateway is on the network: its port, the server behind it, and the drain. Requests enter the house here."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send


class ReadyGate:
    """The app, except that `/ready` says 503 while `draining` is set, so that load balancers look elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if not self.draining or scope.get("path") != "/ready":
            await self._app(scope, receive, send)
            return
        error = {
            "message": "the gateway is shutting down",
            "type": "server_error",
            "param": None,
            "code": "unavailable",
        }
        headers = [(b"content-type", b"application/json"), (b"retry-after", b"5")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})


class GatewayServer(uvicorn.Server):
    """uvicorn that leaves the signals to its owner: the main thread of an actor's process is Ray's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield


class Listener:
    """A bound port and the server behind it, running on the event loop. OSError if the port cannot be had."""

    def __init__(self, app: ASGIApp, host: str, port: int):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=2048)
        # Accepted connections inherit it. asyncio would not set it for sockets that are handed to it, and every answer
        # in two parts would wait 40 ms for the client's delayed acknowledgement.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shown = f"[{host}]" if family is socket.AF_INET6 else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        """Where clients come, without `/v1`."""
        self._gate = ReadyGate(app)
        self._server = GatewayServer(
            uvicorn.Config(self._gate, lifespan="on", log_level="warning", access_log=False, ws="none")
        )
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def wait(self) -> None:
        """Until the server has ended. Raises what ended it."""
        await asyncio.shield(self._task)

    async def drain(self, deadline: float) -> None:
        """Be not ready, take no new connection, finish running answers for up to `deadline` seconds, and end."""
        self._gate.draining = True
        self._server.config.timeout_graceful_shutdown = max(1, round(deadline))
        self._server.should_exit = True
        await self.wait()
        self._socket.close()
