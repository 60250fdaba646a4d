"""A tiny real tokenizer, a scripted backend, and a client without a network, for the tests of the HTTP floor."""

import asyncio
import json
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from stratakv.api.app import create_app
from stratakv.api.backend import BackendStatus, BackendUnavailable, ReplicaView
from stratakv.api.settings import ApiSettings
from stratakv.api.text import Text, TextCodec
from stratakv.cluster.messages import Delta, Failure, FinishReason, Generate, ModelCard, Usage

EOS = 2
CHATML = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LINES = [
    "the quick brown fox jumps over the lazy dog and says hello to the whole wide world",
    "user assistant system answer question token page cache héllo wörld 日本語 🎉",
    "def main():\n    return 'stop here'\n\nEND of the story, it is 12345 times the same",
]


@cache
def tiny_core(lead: bool = False) -> Tokenizer:
    """A byte-level BPE of some 350 tokens with ChatML's special tokens; `lead` puts <|endoftext|> before a text."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=[
            AddedToken(name, special=True) for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_LINES * 3, trainer)
    if lead:
        core.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    return core


def chatml(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
    def fail(message: str) -> None:
        raise ValueError(message)

    template = ImmutableSandboxedEnvironment().from_string(CHATML)
    return template.render(
        messages=messages, add_generation_prompt=add_generation_prompt, raise_exception=fail
    )


@cache
def tiny_text() -> Text:
    return Text(tiny_core(), chatml)


def card(**changes: Any) -> ModelCard:
    values = {
        "name": "tiny",
        "path": "/nowhere/tiny",
        "vocab_size": tiny_core().get_vocab_size(),
        "max_total_tokens": 400,
        "context_length": 512,
        "page_size": 4,
        "eos_token_ids": (EOS,),
        "identity": "00ff",
    }
    return ModelCard(**(values | changes))


class Hang:
    """A step that never comes."""


@dataclass
class FakeBackend:
    """Answers each request with the steps that `script` returns for it: deltas, exceptions to raise, or Hang."""

    script: Callable[[Generate], Iterable[Any]]
    served: ModelCard | None = field(default_factory=card)
    ready: int = 1
    requests: list[Generate] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    """Ids whose iterator was closed before its last step."""
    views: list[ReplicaView] = field(default_factory=list)
    """What the replicas say to explain; none of them means that there is no replica."""
    explained: list[list[bytes]] = field(default_factory=list)

    def card(self) -> ModelCard | None:
        return self.served

    def status(self) -> BackendStatus:
        return BackendStatus(self.ready, 1, running=3, waiting=5)

    async def explain(self, keys: Sequence[bytes], deadline: float) -> list[ReplicaView]:
        self.explained.append(list(keys))
        if not self.views:
            raise BackendUnavailable("no replica is ready yet", 5)
        return self.views

    async def generate(self, request: Generate) -> AsyncGenerator[Delta]:
        self.requests.append(request)
        finished = False
        try:
            for step in self.script(request):
                await asyncio.sleep(0)
                if isinstance(step, Hang):
                    await asyncio.Event().wait()
                if isinstance(step, Exception):
                    finished = True
                    raise step
                finished = step.finish is not None or step.failure is not None
                yield step
        finally:
            if not finished:
                self.aborted.append(request.id)


def prompt_ids(request: Generate) -> list[int]:
    return list(array("I", request.tokens))


def usage(request: Generate, device: int = 0, host: int = 0) -> Usage:
    prompt = len(prompt_ids(request))
    rest = prompt - device - host
    return Usage(prompt=prompt, device=device, host=host, computed=rest, misses={"new": rest})


def deltas(
    request: Generate,
    tokens: Sequence[int],
    finish: FinishReason | None = FinishReason.LENGTH,
    per_step: int = 1,
    account: Usage | None = None,
) -> list[Delta]:
    """`tokens` in steps of `per_step`, with the account in the first and the last."""
    account = account or usage(request)
    parts = [tuple(tokens[at : at + per_step]) for at in range(0, len(tokens), per_step)] or [()]
    last = len(parts) - 1
    return [
        Delta(
            id=request.id,
            tokens=part,
            finish=finish if index == last else None,
            usage=account if index in (0, last) else None,
        )
        for index, part in enumerate(parts)
    ]


def says(text: str, finish: FinishReason = FinishReason.STOP, per_step: int = 1) -> FakeBackend:
    """A backend that always says `text` (and EOS, if it ends by stop), within max_tokens."""

    def script(request: Generate) -> list[Delta]:
        tokens = [*tiny_text().encode(text).ids, *([EOS] if finish is FinishReason.STOP else [])]
        limit = request.sampling.max_tokens
        if len(tokens) > limit:
            return deltas(request, tokens[:limit], FinishReason.LENGTH, per_step)
        return deltas(request, tokens, finish, per_step)

    return FakeBackend(script)


def fails(failure: Failure, after: Sequence[int] = ()) -> FakeBackend:
    """A backend that puts out the tokens `after` and then fails."""

    def script(request: Generate) -> list[Delta]:
        before = deltas(request, after, None) if after else []
        return [*before, Delta(id=request.id, failure=failure)]

    return FakeBackend(script)


def make_app(backend: FakeBackend, text: Text | None = None, **settings: Any) -> FastAPI:
    return create_app(backend, TextCodec(lambda path: text or tiny_text()), ApiSettings(**settings))


def client(app: FastAPI) -> httpx.AsyncClient:
    """Without the certificates of the system, whose loading is most of a short test."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://test", verify=False, trust_env=False
    )


async def post(app: FastAPI, path: str, body: Any) -> httpx.Response:
    """POST `body`: bytes as they are, all else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client(app) as http:
        return await http.post(path, content=data)


async def get(app: FastAPI, path: str) -> httpx.Response:
    async with client(app) as http:
        return await http.get(path)


def events(response: httpx.Response) -> list[Any]:
    """The data of the events of a stream: JSON decoded, the end as the string `[DONE]`."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.split("\n\n"):
        for line in block.split("\n"):
            if line.startswith("data: "):
                found.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
    return found


def chat_text(chunks: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content", "")
        for chunk in chunks
        if chunk != "[DONE]"
        for choice in chunk["choices"]
    )


def check(response: Any, status: int, param: str | None, *words: str, code: str | None = None) -> None:
    """An error in OpenAI's shape, about `param`, whose message has all `words`."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"] and set(body["error"]) == {"message", "type", "param", "code"}
    error = body["error"]
    assert error["param"] == param, error
    for word in words:
        assert word in error["message"], error
    assert error["type"] and error["code"]
    if code is not None:
        assert error["code"] == code


class Connection:
    """One request over bare ASGI, whose client can leave when the test says so."""

    def __init__(self, app: FastAPI, path: str, body: Any):
        self._data = json.dumps(body).encode()
        self._app = app
        self._left = asyncio.Event()
        self._asked = False
        self.sent: list[Any] = []
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
        }

    def leave(self) -> None:
        """The client closes its connection."""
        self._left.set()

    async def serve(self) -> None:
        """Run the request to its end."""
        await self._app(self.scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._data, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
