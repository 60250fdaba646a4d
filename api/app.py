"""The app: routes, errors and the observer, put together over a backend. Where a request enters and leaves StrataKV."""

from fastapi import FastAPI, Request, Response

from stratakv.api import chat, completions, errors, explain, models, operations, tokenize
from stratakv.api.backend import Backend
from stratakv.api.disconnect import ClientGone
from stratakv.api.observe import CLIENT_GONE, Observer
from stratakv.api.service import Service
from stratakv.api.settings import ApiSettings
from stratakv.api.text import TextCodec
from stratakv.cluster.metrics import Metrics


def create_app(
    backend: Backend, text: TextCodec, settings: ApiSettings, metrics: Metrics | None = None
) -> FastAPI:
    """The HTTP API of one gateway over `backend`, which counts in `metrics`, or in its own.

    It has no thread or task of its own while nothing is asked of it.
    """
    metrics = metrics or Metrics()
    service = Service(backend, text, settings, metrics)
    app = FastAPI(title="StrataKV", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    for routes in (chat, completions, models, tokenize, explain, operations):
        app.include_router(routes.router(service))
    errors.install(app)
    app.add_exception_handler(ClientGone, _client_gone)
    app.add_middleware(Observer, metrics=metrics, on_surprise=errors.internal().body)
    return app


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)
