"""How an answer is sent, whole or as a stream. The two kinds of completion differ only in their `Format`."""

import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from fastapi import Request, Response

from stratakv.api import errors, sse
from stratakv.api.disconnect import until_disconnect
from stratakv.api.generation import Generation, Piece
from stratakv.api.protocol import GenerationRequest
from stratakv.api.usage import usage_json

_log = logging.getLogger(__name__)


class Format(Protocol):
    """The JSON of one kind of completion."""

    def whole(self, text: str, generation: Generation) -> dict[str, Any]:
        """The answer in one part, without usage."""

    def opening(self) -> Iterable[dict[str, Any]]:
        """Chunks before the first piece."""

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """The chunk of a piece of text."""

    def closing(self, generation: Generation) -> dict[str, Any]:
        """The chunk that says why the answer ended."""

    def account(self) -> dict[str, Any]:
        """A chunk without a choice, for the usage."""


async def answer(request: Request, body: GenerationRequest, generation: Generation, form: Format) -> Response:
    """The HTTP response of `generation`. Raises ApiError while nothing is sent, ClientGone if the client leaves."""
    if not body.stream:
        text = await until_disconnect(request.receive, _collect(generation))
        usage = usage_json(generation.usage, len(generation.tokens))
        whole = form.whole(text, generation) | {"usage": usage}
        return Response(msgspec.json.encode(whole), media_type="application/json")
    pieces = generation.pieces()
    # The first piece is waited for, so that a request that is refused gets its own status and no stream.
    first = await until_disconnect(request.receive, anext(pieces))
    return sse.EventStream(_events(first, pieces, generation, form, body), pieces)


async def _collect(generation: Generation) -> str:
    async with aclosing(generation.pieces()) as pieces:
        return "".join([piece.text async for piece in pieces])


async def _events(
    first: Piece, pieces: AsyncGenerator[Piece], generation: Generation, form: Format, body: GenerationRequest
) -> AsyncGenerator[bytes]:
    blank = {"usage": None} if body.include_usage else {}
    wants_ids = bool(body.return_token_ids)
    try:
        for chunk in form.opening():
            yield sse.event(chunk | blank)
        if first.text or wants_ids:
            yield sse.event(form.chunk(first) | blank)
        async for piece in pieces:
            if piece.text or wants_ids:
                yield sse.event(form.chunk(piece) | blank)
    except errors.ApiError as error:
        yield sse.error_event(error)
        return
    except Exception:
        _log.exception("a stream broke")
        yield sse.error_event(errors.internal())
        return
    yield sse.event(form.closing(generation) | blank)
    if body.include_usage:
        yield sse.event(form.account() | {"usage": usage_json(generation.usage, len(generation.tokens))})
    yield sse.DONE
