"""POST /tokenize and /detokenize: what a text is to the model, and back."""

from __future__ import annotations  # array[int] is no type before Python 3.12

import asyncio
from array import array
from typing import Any

from fastapi import APIRouter, Request

from stratakv.api import body as bodies
from stratakv.api import limits
from stratakv.api.chat import check_messages, render
from stratakv.api.protocol import DetokenizeRequest, TokenizeRequest
from stratakv.api.service import Service
from stratakv.api.text import Text


def router(service: Service) -> APIRouter:
    """The routes, served by `service`."""
    routes = APIRouter()

    @routes.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        body = await bodies.read(request, TokenizeRequest, service.settings)
        card = service.card(body.model)
        most = service.settings.max_prompt_characters
        if body.messages is not None:
            check_messages(body.messages, most)
            text = await service.text(card)
            source = await render(text, body.messages, add_generation_prompt=body.add_generation_prompt)
        else:
            source = body.prompt or ""
            limits.check_length(len(source), most, "prompt")
            text = await service.text(card)
        with_lead = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
        ids = await asyncio.to_thread(_encode, text, source, text.lead if with_lead else array("I"))
        answer = {"count": len(ids), "max_model_len": card.max_total_tokens, "tokens": list(ids)}
        return answer | ({"token_strs": text.token_texts(ids)} if body.return_token_strs else {})

    @routes.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, Any]:
        body = await bodies.read(request, DetokenizeRequest, service.settings)
        card = service.card(body.model)
        ids = limits.check_ids(body.tokens, card, "tokens")
        text = await service.text(card)
        return {"prompt": await asyncio.to_thread(text.decode, ids)}

    return routes


def _encode(text: Text, source: str, lead: array[int]) -> array[int]:
    return lead + text.encode(source).ids
