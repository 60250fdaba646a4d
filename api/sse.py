"""Server-sent events: the form in which an answer is streamed."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stratakv.api.disconnect import ClientGone, until_disconnect
from stratakv.api.errors import ApiError

DONE = b"data: [DONE]\n\n"
"""Ends a complete stream."""


def event(data: object) -> bytes:
    """One event with `data` as JSON."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """The event that ends a stream which failed."""
    return b"event: error\ndata: " + error.body() + b"\n\n"


class EventStream(Response):
    """Sends `events` as they come. Closes them and `source`, which they are made of, however it ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], source: AsyncGenerator[Any]):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream until it ends or the client leaves."""
        async with aclosing(self._source), aclosing(self._events):
            try:
                await until_disconnect(receive, self._stream(send))
            except (ClientGone, OSError):
                return  # nobody is left to be told

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
