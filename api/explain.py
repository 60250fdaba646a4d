"""POST /v1/explain: what each tier would give of a prompt now, why the rest would be computed, and where the prompt
parts from the nearest history that was sent before.

Nothing is generated, reserved or counted: to ask changes nothing of what is cached.
"""

from __future__ import annotations  # array[int] is no type before Python 3.12

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import APIRouter, Request

from stratakv.api import body as bodies
from stratakv.api import errors, limits
from stratakv.api.backend import BackendUnavailable, ReplicaView
from stratakv.api.chat import check_messages, render
from stratakv.api.completions import parse_prompt
from stratakv.api.divergence import REMEDIES, Cause, Sides, guess
from stratakv.api.observe import observation
from stratakv.api.prompts import Prompt
from stratakv.api.protocol import ExplainRequest, Message
from stratakv.api.recent import Nearest
from stratakv.api.service import Service
from stratakv.api.text import Text
from stratakv.cluster.messages import ModelCard
from stratakv.storage.keys import chain, namespace_seed
from stratakv.storage.tiers import Miss, PageKey

_SHOWN = 24  # tokens on each side of the first that differs
_LOOKED_AT = 768  # tokens after it that the guess is made from
_COMMON = 256  # and before it


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt as tokens; `keys` are those of the pages that may be reused: never the last token's. `head` is how many
    characters come before what the user says first, 0 when that is not known."""

    prompt: Prompt
    keys: list[PageKey]
    page_size: int
    head: int


def router(service: Service) -> APIRouter:
    """The route, served by `service`."""
    routes = APIRouter()

    @routes.post("/v1/explain")
    async def explain(request: Request) -> dict[str, Any]:
        observation(request.scope).until_answered.enter_context(service.place())
        body = await bodies.read(request, ExplainRequest, service.settings)
        card = service.card(body.model)
        text = await service.text(card)
        asked = await _ask(service, body, card, text)
        try:
            views = await service.backend.explain(asked.keys, service.settings.explain_timeout)
        except BackendUnavailable as error:
            raise errors.from_backend(error) from error
        tenant, ids = limits.tenant(body), asked.prompt.ids
        nearest = await asyncio.to_thread(service.recent.nearest, tenant, ids)
        elsewhere = await asyncio.to_thread(service.recent.elsewhere, tenant, ids)
        return {
            "object": "explanation",
            "model": card.name,
            "prompt_tokens": len(ids),
            "page_size": asked.page_size,
            "pages": len(asked.keys),
            "token_map": asked.prompt.outcome,
            "replicas": [account(view, len(ids), asked.page_size) for view in views],
            "nearest": await asyncio.to_thread(_nearest, asked, text, nearest, elsewhere),
        }

    return routes


async def _ask(service: Service, body: ExplainRequest, card: ModelCard, text: Text) -> Asked:
    """The tokens that the same prompt would have as a request. Raises ApiError."""
    most, tenant = service.settings.max_prompt_characters, limits.tenant(body)
    param, head = "prompt", 0
    if body.messages is not None:
        param = "messages"
        check_messages(body.messages, most)
        rendered = await render(text, body.messages)
        limits.check_fits(rendered, text.longest_token, card, param)
        prompt, head = await service.prompts.chat(text, rendered, tenant), _head(rendered, body.messages)
    else:
        source = parse_prompt(body.prompt, card, most)
        if isinstance(source, str):
            limits.check_fits(source, text.longest_token, card, param)
            prompt = await service.prompts.completion(text, source, tenant)
        else:
            prompt = Prompt(source)
    if not prompt.ids:
        raise errors.invalid(param, f"`{param}` comes to no token at all; send at least one.")
    limits.output_limit(len(prompt.ids), None, 1, card, param)
    return Asked(prompt, await asyncio.to_thread(_keys, body, prompt.ids, card), card.page_size, head)


def _keys(body: ExplainRequest, ids: array[int], card: ModelCard) -> list[PageKey]:
    seed = namespace_seed(body.extra_key, body.cache_salt)
    return chain(np.frombuffer(ids, np.uint32)[: len(ids) - 1], card.page_size, after=seed)


def _head(rendered: str, messages: Sequence[Message]) -> int:
    first = next((message.content for message in messages if message.role == "user"), None)
    return max(0, rendered.find(first)) if first else 0


def account(view: ReplicaView, tokens: int, page_size: int) -> dict[str, Any]:
    """What one replica would do with a prompt of `tokens` tokens, as JSON: it adds up as a usage does."""
    if view.answer is None:
        return {"replica": view.replica, "error": view.trouble}
    answer = view.answer
    at = (answer.device + answer.host + answer.store) * page_size
    shares = {
        "device_tokens": answer.device * page_size,
        "host_tokens": answer.host * page_size,
        "store_tokens": answer.store * page_size,
        "computed_tokens": tokens - at,
    }
    misses = []
    for stretch in answer.misses:
        lost = stretch.pages * page_size
        misses.append({"first_token": at, "tokens": lost, "reason": stretch.reason})
        at += lost
    misses.append({"first_token": at, "tokens": tokens - at, "reason": str(Miss.PAGE_TAIL)})
    return {"replica": view.replica, "error": None, **shares, "misses": misses}


def _nearest(asked: Asked, text: Text, nearest: Nearest | None, elsewhere: int) -> dict[str, Any]:
    """Where the prompt parts from the nearest history, and why. Runs in a thread: it decodes."""
    ids = asked.prompt.ids
    common = nearest.common if nearest else 0
    ends = nearest is None or common in (len(ids), len(nearest.ids))
    cause = _cause(asked, text, nearest, elsewhere)
    here, there = [
        None if ends or source is None else _side(text, source, common)
        for source in (ids, nearest.ids if nearest else None)
    ]
    return {
        "common_tokens": common,
        "common_pages": common // asked.page_size,
        "first_difference": None if ends else common,
        "before": text.decode(ids[max(0, common - _SHOWN) : common]),
        "here": here,
        "there": there,
        "other_namespace_tokens": elsewhere,
        "cause": cause,
        "remedy": REMEDIES[cause],
    }


def _cause(asked: Asked, text: Text, nearest: Nearest | None, elsewhere: int) -> Cause:
    common = nearest.common if nearest else 0
    if not asked.keys:
        return Cause.PAGE_TOO_SHORT
    if elsewhere // asked.page_size > common // asked.page_size:
        return Cause.NAMESPACE
    if nearest is None:
        return Cause.NO_HISTORY
    ids = asked.prompt.ids
    if common in (len(ids), len(nearest.ids)):
        return Cause.GOES_ON if common >= asked.page_size else Cause.PAGE_TOO_SHORT
    sides = Sides(
        text.decode(ids[max(0, common - _COMMON) : common]),
        text.decode(ids[common : common + _LOOKED_AT]),
        text.decode(nearest.ids[common : common + _LOOKED_AT]),
    )
    return guess(sides, in_head=len(text.decode(ids[:common])) < asked.head)


def _side(text: Text, ids: array[int], at: int) -> dict[str, Any]:
    return {
        "token": ids[at],
        "text": text.decode(ids[at : at + 1]),
        "after": text.decode(ids[at + 1 : at + 1 + _SHOWN]),
    }
