"""What happens when the replica fails, the client leaves, or there is too much to do. Nothing is left running."""

import asyncio
from typing import Any

import pytest
from api_fakes import (
    Connection,
    FakeBackend,
    Hang,
    check,
    client,
    deltas,
    events,
    fails,
    get,
    make_app,
    post,
    says,
    tiny_core,
)

from stratakv.api.backend import BackendUnavailable
from stratakv.api.settings import ApiSettings
from stratakv.cluster.messages import Delta, Failure, FinishReason

pytestmark = pytest.mark.anyio

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "tiny", "prompt": "hi"}
_ROUTES = [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), _ROUTES)
async def test_no_replica(path: str, body: dict[str, Any], stream: bool):
    backend = FakeBackend(lambda request: [BackendUnavailable("no replica is ready", 7)])
    response = await post(make_app(backend), path, body | {"stream": stream})
    check(response, 503, None, "No replica is ready", "again", code="unavailable")
    assert response.headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("path", "body"), [*_ROUTES, ("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": []})]
)
async def test_no_replica_has_been_ready_yet(path: str, body: dict[str, Any]):
    response = await post(make_app(FakeBackend(lambda request: [], served=None)), path, body)
    check(response, 503, None, "/ready", code="unavailable")
    assert response.headers["retry-after"]


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Failure("context_length_exceeded", "too long, shorten it", "prompt"), 400),
        (Failure("invalid_value", "token 5 is odd", "prompt"), 400),
        (Failure("never_heard_of", "bad field", "top_p"), 400),
        (Failure("rate_limit_exceeded", "64 requests wait; retry"), 429),
        (Failure("gateway_lost", "retry"), 503),
        (Failure("server_error", "the engine broke"), 500),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_replica_that_refuses(failure: Failure, status: int, stream: bool):
    response = await post(make_app(fails(failure)), "/v1/completions", TEXT | {"stream": stream})
    check(response, status, failure.param if status == 400 else None, failure.message)
    assert ("retry-after" in response.headers) == (status in (429, 503))


_ENDINGS: list[Any] = [
    BackendUnavailable("the replica died", 3),
    Delta(id="", failure=Failure("server_error", "the engine broke")),
    Delta(id="", finish=FinishReason.ABORT),
    RuntimeError("secret detail"),
    None,
]


@pytest.mark.parametrize("ending", _ENDINGS, ids=["dies", "fails", "aborts", "surprises", "just ends"])
@pytest.mark.parametrize(("path", "body"), _ROUTES)
async def test_a_replica_that_fails_in_the_middle(path: str, body: dict[str, Any], ending: Any):
    def script(request: Any) -> list[Any]:
        return [*deltas(request, [60, 61], None), *([] if ending is None else [ending])]

    app = make_app(FakeBackend(script))
    whole = await post(app, path, body)
    assert whole.status_code in (500, 503)
    check(whole, whole.status_code, None)
    assert "secret" not in whole.text
    assert ("retry-after" in whole.headers) == (whole.status_code == 503)

    response = await post(app, path, body | {"stream": True})
    assert response.status_code == 200
    *chunks, last = events(response)
    assert "[DONE]" not in chunks and last != "[DONE]"
    assert last == whole.json() and "\nevent: error\n" in response.text
    assert any(
        chunk["choices"][0].get("text") or chunk["choices"][0].get("delta", {}).get("content")
        for chunk in chunks
    )


async def test_a_silent_replica_is_given_up():
    backend = FakeBackend(lambda request: [*deltas(request, [60], None), Hang()])
    response = await post(make_app(backend, delta_timeout=0.05), "/v1/completions", TEXT)
    check(response, 503, None, "silent for 0.05 seconds", code="unavailable")
    assert backend.aborted == [backend.requests[0].id]


@pytest.mark.parametrize("first", [[], [60, 61]], ids=["before the first token", "after it"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), _ROUTES)
async def test_a_client_that_leaves_frees_its_request(
    path: str, body: dict[str, Any], stream: bool, first: list[int]
):
    hanging = asyncio.Event()

    def script(request: Any) -> Any:
        yield from deltas(request, first, None) if first else []
        hanging.set()
        yield Hang()

    backend = FakeBackend(script)
    app = make_app(backend, max_requests=1)
    connection = Connection(app, path, body | {"stream": stream})
    task = asyncio.create_task(connection.serve())
    async with asyncio.timeout(10):
        await hanging.wait()
        assert not backend.aborted
        check(await post(app, path, body), 429, None, "max_requests")
        connection.leave()
        await task
    assert backend.aborted == [backend.requests[0].id]
    metrics = (await get(app, "/metrics")).text
    assert f'stratakv_requests_total{{route="{path}",status="499"}} 1.0' in metrics or not first
    backend.script = says("x").script
    assert (await post(app, path, body)).status_code == 200


async def test_a_client_that_stops_reading_frees_its_request():
    """The connection breaks while something is sent."""
    backend = FakeBackend(lambda request: [*deltas(request, [60, 61, 62], None), Hang()])
    connection = Connection(make_app(backend), "/v1/completions", TEXT | {"stream": True})
    count = 0

    async def broken(message: Any) -> None:
        nonlocal count
        count += 1
        if count > 2:
            raise OSError("connection reset")

    connection._send = broken  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await connection.serve()
    assert backend.aborted == [backend.requests[0].id]


async def test_cancelling_the_server_frees_the_request():
    hanging = asyncio.Event()

    def script(request: Any) -> Any:
        yield from deltas(request, [60], None)
        hanging.set()
        yield Hang()

    backend = FakeBackend(script)
    connection = Connection(make_app(backend), "/v1/completions", TEXT)
    task = asyncio.create_task(connection.serve())
    async with asyncio.timeout(10):
        await hanging.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert backend.aborted == [backend.requests[0].id]


async def test_overload_is_refused_and_passes():
    release = asyncio.Event()
    working = asyncio.Event()

    class Waiting(FakeBackend):
        async def generate(self, request: Any) -> Any:
            working.set()
            await release.wait()
            for delta in deltas(request, [60]):
                yield delta

    app = make_app(Waiting(lambda request: []), max_requests=1)
    first = asyncio.create_task(post(app, "/v1/completions", TEXT))
    async with asyncio.timeout(10):
        await working.wait()
        for path, body in _ROUTES:
            response = await post(app, path, body)
            check(response, 429, None, "1 requests", "max_requests", code="rate_limit_exceeded")
            assert response.headers["retry-after"] == "1"
        assert (await get(app, "/health")).status_code == 200
        release.set()
        assert (await first).status_code == 200
        assert (await post(app, "/v1/completions", TEXT)).status_code == 200


async def test_every_end_frees_its_place():
    app = make_app(fails(Failure("server_error", "broken"), after=[60]), max_requests=1)
    for _ in range(3):
        assert (await post(app, "/v1/completions", TEXT)).status_code == 500
        assert (await post(app, "/v1/completions", TEXT | {"stream": True})).status_code == 200
        assert (await post(app, "/v1/completions", {})).status_code == 400


async def test_a_surprise_is_logged_and_says_nothing(caplog: pytest.LogCaptureFixture):
    class Broken(FakeBackend):
        def card(self) -> Any:
            raise RuntimeError("secret detail")

    response = await post(make_app(Broken(lambda request: [])), "/v1/completions", TEXT)
    check(response, 500, None, "log", code="internal_error")
    assert "secret" not in response.text and "secret detail" in caplog.text


async def test_a_backend_that_cannot_be_closed_holds_nobody_up(monkeypatch: pytest.MonkeyPatch):
    class Stuck(FakeBackend):
        async def generate(self, request: Any) -> Any:
            try:
                for delta in deltas(request, [60, 61], None):
                    yield delta
            finally:
                await asyncio.Event().wait()

    first = tiny_core().decode([60])
    monkeypatch.setattr("stratakv.api.generation._CLOSE_TIMEOUT", 0.05)
    async with asyncio.timeout(10):
        response = await post(make_app(Stuck(lambda request: [])), "/v1/completions", TEXT | {"stop": first})
    assert response.status_code == 200 and response.json()["choices"][0]["finish_reason"] == "stop"


async def test_a_slow_body_has_a_deadline():
    async def dribble() -> Any:
        yield b'{"model":'
        await asyncio.Event().wait()

    app = make_app(says("x"), body_timeout=0.05, max_requests=1)
    async with client(app) as http, asyncio.timeout(10):
        response = await http.post("/v1/completions", content=dribble())
    check(response, 408, None, "0.05 seconds", code="request_timeout")
    assert (await post(app, "/v1/completions", TEXT)).status_code == 200


async def test_a_tokenizer_that_cannot_be_loaded(caplog: pytest.LogCaptureFixture):
    from stratakv.api.app import create_app
    from stratakv.api.text import TextCodec

    def load(path: str) -> Any:
        raise OSError(f"nothing at {path}")

    app = create_app(says("x"), TextCodec(load), ApiSettings())
    response = await post(app, "/v1/completions", TEXT)
    check(response, 503, None, "tokenizer")
    assert "/nowhere" not in response.text and "/nowhere" in caplog.text
    check(await get(app, "/ready"), 503, None, "tokenizer")
