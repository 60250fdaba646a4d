"""GET /health, /ready and /metrics: for whoever runs the cluster."""

from typing import Any

from fastapi import APIRouter, Response

from stratakv.api import errors
from stratakv.api.service import Service
from stratakv.cluster.metrics import CONTENT_TYPE


def router(service: Service) -> APIRouter:
    """The routes, served by `service`."""
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok"}

    @routes.get("/ready")
    async def ready() -> dict[str, Any]:
        status = service.backend.status()
        card = service.backend.card()
        if card is None or not status.replicas_ready:
            raise errors.unavailable(f"0 of {status.replicas_total} replicas are ready; ask again later.")
        if not service.codec.ready(card):
            raise errors.unavailable("The tokenizer is not loaded yet; ask again later.")
        return {
            "status": "ready",
            "replicas_ready": status.replicas_ready,
            "replicas_total": status.replicas_total,
        }

    @routes.get("/metrics")
    async def metrics() -> Response:
        status = service.backend.status()
        service.metrics.load(
            running=status.running,
            waiting=status.waiting,
            ready=status.replicas_ready,
            total=status.replicas_total,
            map_bytes=service.prompts.bytes,
        )
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    return routes
