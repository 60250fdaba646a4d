"""GET /v1/models: what is served here."""

import time
from typing import Any

from fastapi import APIRouter

from stratakv.api.service import Service
from stratakv.cluster.messages import ModelCard


def router(service: Service) -> APIRouter:
    """The routes, served by `service`."""
    routes = APIRouter()
    started = int(time.time())

    def entry(card: ModelCard) -> dict[str, Any]:
        return {
            "id": card.name,
            "object": "model",
            "created": started,
            "owned_by": "stratakv",
            "max_model_len": card.max_total_tokens,
            "vocab_size": card.vocab_size,
            "page_size": card.page_size,
        }

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = service.backend.card()
        return {"object": "list", "data": [] if card is None else [entry(card)]}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return entry(service.card(name))

    return routes
