"""What a client is told when something goes wrong: always OpenAI's error object, with the field and a remedy."""

from collections.abc import Mapping

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from stratakv.api.backend import BackendUnavailable
from stratakv.api.observe import observation
from stratakv.cluster.messages import Failure

_INVALID = "invalid_request_error"
_FAILURE_STATUS = {
    "context_length_exceeded": 400,
    "invalid_value": 400,
    "request_too_large": 413,
    "rate_limit_exceeded": 429,
    "overloaded": 429,
    "unavailable": 503,
    "gateway_lost": 503,
}


class ApiError(Exception):
    """A request that ends in an error. `message` names the field and the remedy; `param` is the field."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = _INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})
        self._error = {"message": message, "type": kind, "param": param, "code": code}

    def body(self) -> bytes:
        """The JSON of OpenAI's error object."""
        return msgspec.json.encode({"error": self._error})

    def response(self) -> Response:
        """The HTTP answer."""
        return Response(self.body(), self.status, self.headers, "application/json")


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """400: the field `param` cannot be served as it is."""
    return ApiError(400, message, param=param, code=code)


def context_exceeded(param: str, message: str) -> ApiError:
    """400: more tokens than one request may have; `message` states both numbers."""
    return invalid(param, message, "context_length_exceeded")


def unknown_model(name: str, served: str) -> ApiError:
    """404: `name` is not what runs here."""
    message = f"The model `{name}` is not served here; set `model` to `{served}`."
    return ApiError(404, message, param="model", code="model_not_found")


def overloaded(message: str) -> ApiError:
    """429: this gateway has as much to do as it may."""
    return ApiError(
        429, message, kind="rate_limit_error", code="rate_limit_exceeded", headers={"Retry-After": "1"}
    )


def unavailable(message: str, retry_after: int = 1) -> ApiError:
    """503: no replica can serve this now."""
    return ApiError(
        503, message, kind="server_error", code="unavailable", headers={"Retry-After": str(retry_after)}
    )


def from_backend(error: BackendUnavailable) -> ApiError:
    """The 503 of a backend that has no replica for the request, or lost it."""
    message = str(error).rstrip(".")
    return unavailable(f"{message[:1].upper()}{message[1:]}. Send the request again.", error.retry_after)


def from_failure(failure: Failure) -> ApiError:
    """What a replica refused or could not finish, as the client sees it. A named field makes it the client's."""
    status = _FAILURE_STATUS.get(failure.code, 400 if failure.param else 500)
    if status == 429:
        return overloaded(failure.message)
    if status == 503:
        return unavailable(failure.message)
    kind = _INVALID if status < 500 else "server_error"
    return ApiError(status, failure.message, kind=kind, param=failure.param, code=failure.code)


def internal() -> ApiError:
    """500: the details are in the log and not the client's business."""
    message = "The server failed on this request. Its log has the details; the request may be sent again."
    return ApiError(500, message, kind="server_error", code="internal_error")


def install(app: FastAPI) -> None:
    """Make every error that `app` answers by itself OpenAI's too. Mutates `app`."""

    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        observation(request.scope).fail(error.status, error.message)
        return error.response()

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await api_error(request, _routing_error(request, error))

    async def path_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return await api_error(request, invalid(str(first["loc"][-1]), str(first["msg"])))

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, path_error)


def _routing_error(request: Request, error: HTTPException) -> ApiError:
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return ApiError(404, f"There is no {what} here; the API starts at /v1.", code="not_found")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{what} is not allowed; use {allowed or 'another method'}."
        return ApiError(405, message, code="method_not_allowed", headers=error.headers)
    return ApiError(error.status_code, str(error.detail), headers=error.headers)
