"""From the bytes of a request to its model, within limits: nothing is parsed that is too large or too slow."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from stratakv.api.disconnect import ClientGone
from stratakv.api.errors import ApiError, invalid
from stratakv.api.fields import FIELD_ERROR
from stratakv.api.protocol import RequestModel
from stratakv.api.settings import ApiSettings
from stratakv.storage.settings import format_size

Body = TypeVar("Body", bound=RequestModel)

_DRAIN_FACTOR = (
    8  # of what is too large so much is still read, since a client reads no answer before it has sent all
)


async def read(request: Request, model: type[Body], settings: ApiSettings) -> Body:
    """The body of `request` as a `model`. Raises ApiError, or ClientGone if the client left meanwhile."""
    try:
        async with asyncio.timeout(settings.body_timeout):
            data = await _receive(request, settings.max_body)
    except TimeoutError:
        message = f"The body did not arrive within {settings.body_timeout:g} seconds; send the request again."
        raise ApiError(408, message, code="request_timeout") from None
    except ClientDisconnect:
        raise ClientGone from None
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise _explain(error) from None


async def _receive(request: Request, limit: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > limit * _DRAIN_FACTOR:
        raise _too_large(limit)
    body = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            body += chunk
        elif size > limit * _DRAIN_FACTOR:
            break
    if size > limit:
        raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    message = (
        f"The body is larger than the {format_size(limit)} that `max_body` allows; send a shorter request."
    )
    return ApiError(413, message, code="request_too_large")


def _explain(error: ValidationError) -> ApiError:
    """The first fault that was found, with the field it is in and what to send instead."""
    first = error.errors(include_url=False)[0]
    kind, message, context = first["type"], first["msg"], first.get("ctx", {})
    if kind == "json_invalid":
        return invalid(
            None, f"The body is not valid JSON ({context['error']}); send one JSON object.", "invalid_json"
        )
    path = [*first["loc"], *([context["field"]] if kind == FIELD_ERROR else [])]
    param = _dotted(path)
    if not param:
        return invalid(
            None, "The body is not a JSON object; send one, with the fields of this route.", "invalid_type"
        )
    if kind == "missing":
        return invalid(param, f"`{param}` is missing; it is required.", "missing_required_parameter")
    if kind == "extra_forbidden":
        return invalid(param, f"`{param}` is not a field of this route; leave it out.", "unknown_parameter")
    code = "unsupported_value" if kind == FIELD_ERROR else "invalid_value"
    given = first["input"]
    shown = f" (it is {given!r:.80})" if isinstance(given, str | int | float) else ""
    return invalid(param, f"`{param}`: {message[:1].lower()}{message[1:]}{shown}.", code)


def _dotted(path: Sequence[str | int]) -> str:
    """`messages[0].content` for ("messages", 0, "content")."""
    text = ""
    for part in path:
        name = str(part)
        text += f"[{name}]" if name.isdigit() and text else f".{name}" if text else name
    return text
