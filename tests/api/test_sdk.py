"""OpenAI's own client against a real server on a loopback port."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from api_fakes import FakeBackend, Hang, deltas, fails, make_app, says
from fastapi import FastAPI

from stratakv.cluster.messages import Failure

pytestmark = pytest.mark.anyio

HI: Any = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[openai.AsyncOpenAI]:
    """A server for `app` on a free port, and a client for it."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    base = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    try:
        http = httpx.AsyncClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=base, api_key="x", timeout=20, max_retries=0, http_client=http
        ) as client:
            yield client
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 20)
        listener.close()


async def test_the_sdk_gets_what_it_expects():
    async with served(make_app(says("hello wörld 🎉"))) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).id == "tiny"

        chat = await client.chat.completions.create(
            model="tiny", messages=HI, temperature=0, max_completion_tokens=50
        )
        assert chat.choices[0].message.content == "hello wörld 🎉"
        assert chat.choices[0].finish_reason == "stop"
        assert chat.usage and chat.usage.prompt_tokens_details
        assert chat.usage.prompt_tokens_details.cached_tokens == 0

        again = await client.chat.completions.create(
            model="tiny",
            messages=[*HI, chat.choices[0].message.model_dump(), *HI],
            extra_body={"cache_salt": "x"},
        )
        assert again.choices[0].message.content

        pieces, usage = [], None
        stream = await client.chat.completions.create(
            model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            pieces += [choice.delta.content or "" for choice in chunk.choices]
        assert "".join(pieces) == "hello wörld 🎉" and len(pieces) > 5
        assert usage and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens

        text = await client.completions.create(model="tiny", prompt="hi", stop=["wör"], max_tokens=50)
        assert text.choices[0].text == "hello "


async def test_the_sdk_sees_errors_as_its_own():
    async with served(make_app(says("x"))) as client:
        with pytest.raises(openai.NotFoundError, match="set `model` to `tiny`"):
            await client.chat.completions.create(model="gpt-4", messages=HI)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="tiny", messages=HI, n=3)
        assert caught.value.param == "n" and caught.value.code == "unsupported_value"
    async with served(make_app(fails(Failure("server_error", "the engine broke"), after=[60, 61]))) as client:
        stream = await client.chat.completions.create(model="tiny", messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="the engine broke"):
            async for _ in stream:
                pass


@pytest.mark.parametrize("stream", [True, False])
async def test_closing_the_connection_aborts_the_request(stream: bool):
    hanging = asyncio.Event()

    def script(request: Any) -> Any:
        yield from deltas(request, [60, 61], None)
        hanging.set()
        yield Hang()

    backend = FakeBackend(script)
    async with served(make_app(backend)) as client, asyncio.timeout(30):

        async def ask() -> None:
            answer = await client.chat.completions.create(model="tiny", messages=HI, stream=stream)
            async for _ in answer:
                pass

        task = asyncio.create_task(ask())
        await hanging.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while not backend.aborted:
            await asyncio.sleep(0.01)
    assert backend.aborted == [backend.requests[0].id]
