"""Everything a client can get wrong: one clear error each, in OpenAI's shape, that names the field and the remedy."""

import json
from typing import Any

import pytest
from api_fakes import check, client, get, make_app, post, says, tiny_core
from hypothesis import given, settings
from hypothesis import strategies as st

from stratakv.api.text import Text

pytestmark = pytest.mark.anyio

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "tiny", "prompt": "hi"}


def _with(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (base | changes).items() if value is not ...}


def _message(**fields: Any) -> dict[str, Any]:
    return _with(CHAT, messages=[{"role": "user", "content": "hi"}, fields])


_BOTH = [
    ({"model": ...}, "model", ["required"]),
    ({"model": 7}, "model", ["string"]),
    ({"model": None}, "model", ["string"]),
    ({"max_tokens": 0}, "max_tokens", ["greater than or equal to 1"]),
    ({"max_tokens": -3}, "max_tokens", ["1"]),
    ({"max_tokens": 1.5}, "max_tokens", ["integer"]),
    ({"max_tokens": True}, "max_tokens", ["integer"]),
    ({"max_tokens": "5"}, "max_tokens", ["integer"]),
    ({"temperature": -0.1}, "temperature", ["greater than or equal to 0", "-0.1"]),
    ({"temperature": 2.5}, "temperature", ["less than or equal to 2"]),
    ({"temperature": "hot"}, "temperature", ["number"]),
    ({"temperature": True}, "temperature", ["number"]),
    ({"top_p": 0}, "top_p", ["greater than 0"]),
    ({"top_p": 1.01}, "top_p", ["less than or equal to 1"]),
    ({"top_k": -2}, "top_k", ["-1"]),
    ({"top_k": 0.5}, "top_k", ["integer"]),
    ({"top_k": 2**40}, "top_k", ["less than"]),
    ({"seed": 2**63}, "seed", ["less than"]),
    ({"seed": "lucky"}, "seed", ["integer"]),
    ({"stop": 5}, "stop", ["array"]),
    ({"stop": ""}, "stop[0]", ["1 character"]),
    ({"stop": ["a", ""]}, "stop[1]", ["1 character"]),
    ({"stop": ["a", 5]}, "stop[1]", ["string"]),
    ({"stop": ["a"] * 17}, "stop", ["16"]),
    ({"stop": "x" * 257}, "stop[0]", ["256"]),
    ({"stream": "yes"}, "stream", ["boolean"]),
    ({"stream_options": {"include_usage": True}}, "stream_options", ["`stream` to true"]),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", ["boolean"]),
    ({"stream": True, "stream_options": {"foo": 1}}, "stream_options.foo", ["leave it out"]),
    ({"ignore_eos": 1}, "ignore_eos", ["boolean"]),
    ({"cache_salt": 5}, "cache_salt", ["string"]),
    ({"extra_key": ["a"]}, "extra_key", ["string"]),
    ({"cache_salt": "x" * 1025}, "cache_salt", ["1024"]),
    ({"stop_token_ids": 5}, "stop_token_ids", ["array"]),
    ({"stop_token_ids": [1, "2"]}, "stop_token_ids[1]", ["integer"]),
    ({"stop_token_ids": [1, 99999]}, "stop_token_ids[1]", ["99999", "0 to"]),
    ({"return_token_ids": "yes"}, "return_token_ids", ["boolean"]),
    ({"n": 2}, "n", ["not supported yet", "send 1"]),
    ({"n": True}, "n", ["not supported yet"]),
    ({"n": "1"}, "n", ["not supported yet"]),
    ({"best_of": 3}, "best_of", ["send 1"]),
    ({"echo": True}, "echo", ["send false"]),
    ({"presence_penalty": 0.5}, "presence_penalty", ["send 0"]),
    ({"frequency_penalty": -1}, "frequency_penalty", ["send 0"]),
    ({"repetition_penalty": 1.1}, "repetition_penalty", ["send 1"]),
    ({"min_p": 0.1}, "min_p", ["send 0"]),
    ({"logit_bias": {"5": 1}}, "logit_bias", ["send {}"]),
    ({"response_format": {"type": "json_object"}}, "response_format", ["text"]),
    ({"frobnicate": 1}, "frobnicate", ["leave it out"]),
    ({"api_key": "secret"}, "api_key", ["leave it out"]),
]  # fmt: skip

_CHAT = [
    (_with(CHAT, messages=...), "messages", ["required"]),
    (_with(CHAT, messages=[]), "messages", ["at least 1"]),
    (_with(CHAT, messages="hi"), "messages", ["array"]),
    (_with(CHAT, messages=None), "messages", ["array"]),
    (_with(CHAT, messages=["hi"]), "messages[0]", ["object"]),
    (_with(CHAT, prompt="hi"), "prompt", ["not a field"]),
    (_message(role="robot", content="x"), "messages[1].role", ["'assistant'", "robot"]),
    (_message(content="x"), "messages[1].role", ["required"]),
    (_message(role="user"), "messages[1].content", ["string"]),
    (_message(role="user", content=None), "messages[1].content", ["string"]),
    (_message(role="user", content=5), "messages[1].content", ["string"]),
    (_message(role="user", content={"type": "text"}), "messages[1].content", ["string"]),
    (_message(role="user", content=[]), "messages[1].content", ["part"]),
    (_message(role="user", content=["x"]), "messages[1].content[0]", ["text"]),
    (_message(role="user", content=[{"type": "text"}]), "messages[1].content[0]", ["text"]),
    (_message(role="user", content=[{"type": "text", "text": 5}]), "messages[1].content[0]", ["text"]),
    (
        _message(role="user", content=[{"type": "text", "text": "x", "y": 1}]),
        "messages[1].content[0]",
        ["no other"],
    ),
    (
        _message(
            role="user", content=[{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]
        ),
        "messages[1].content[1]",
        ["image_url", "type `text` only"],
    ),
    (
        _message(role="assistant", tool_calls=[{"id": "1"}]),
        "messages[1].tool_calls",
        ["tools are not supported"],
    ),
    (_message(role="assistant", refusal="no"), "messages[1].refusal", ["content"]),
    (_message(role="user", content="x", mood="good"), "messages[1].mood", ["leave it out"]),
    (_message(role="user", content="x", name=5), "messages[1].name", ["string"]),
    (_message(role="tool", content="x"), "messages", ["no tools here"]),
    (_with(CHAT, max_completion_tokens=0), "max_completion_tokens", ["1"]),
    (_with(CHAT, max_completion_tokens=5, max_tokens=6), "max_tokens", ["max_completion_tokens"]),
    (_with(CHAT, tools=[{"type": "function"}]), "tools", ["tools are not supported"]),
    (_with(CHAT, tool_choice="required"), "tool_choice", ["not supported"]),
    (_with(CHAT, functions=[{}]), "functions", ["not supported"]),
    (_with(CHAT, logprobs=True), "logprobs", ["send false"]),
    (_with(CHAT, top_logprobs=3), "top_logprobs", ["send 0"]),
    (_with(CHAT, modalities=["text", "audio"]), "modalities", ['["text"]']),
    (_with(CHAT, reasoning_effort="high"), "reasoning_effort", ["not supported"]),
    (_with(CHAT, chat_template="{{ x }}"), "chat_template", ["leave it out"]),
]

_TEXT = [
    (_with(TEXT, prompt=...), "prompt", ["required"]),
    (_with(TEXT, prompt=None), "prompt", ["string or a list"]),
    (_with(TEXT, prompt=""), "prompt", ["empty"]),
    (_with(TEXT, prompt=[]), "prompt", ["empty"]),
    (_with(TEXT, prompt=[""]), "prompt", ["empty"]),
    (_with(TEXT, prompt=[[]]), "prompt", ["empty"]),
    (_with(TEXT, prompt=5), "prompt", ["string or a list"]),
    (_with(TEXT, prompt={"a": 1}), "prompt", ["string or a list"]),
    (_with(TEXT, prompt=["a", "b"]), "prompt", ["2 prompts", "one request for each"]),
    (_with(TEXT, prompt=[[1], [2], [3]]), "prompt", ["3 prompts"]),
    (_with(TEXT, prompt=[1, "a"]), "prompt[1]", ["whole number"]),
    (_with(TEXT, prompt=[1, True]), "prompt[1]", ["whole number"]),
    (_with(TEXT, prompt=[1, 2.0]), "prompt[1]", ["whole number"]),
    (_with(TEXT, prompt=[[1, [2]]]), "prompt[1]", ["whole number"]),
    (_with(TEXT, prompt=[1, -1]), "prompt[1]", ["-1", "0 to"]),
    (_with(TEXT, prompt=[1, 10**30]), "prompt[1]", ["0 to"]),
    (_with(TEXT, prompt=[1, tiny_core().get_vocab_size()]), "prompt[1]", ["0 to"]),
    (_with(TEXT, messages=[]), "messages", ["not a field"]),
    (_with(TEXT, logprobs=0), "logprobs", ["leave it out"]),
    (_with(TEXT, suffix="x"), "suffix", ["leave it out"]),
    (_with(TEXT, max_completion_tokens=5), "max_completion_tokens", ["not a field"]),
]


async def _refuses(path: str, body: Any, param: str | None, words: list[str], **settings: Any) -> None:
    backend = says("hello")
    check(await post(make_app(backend, **settings), path, body), 400, param, *words)
    assert backend.requests == []


@pytest.mark.parametrize(("changes", "param", "words"), _BOTH, ids=[str(case[0])[:60] for case in _BOTH])
@pytest.mark.parametrize(("path", "base"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
async def test_fields_of_both(
    path: str, base: dict[str, Any], changes: dict[str, Any], param: str, words: list[str]
):
    await _refuses(path, _with(base, **changes), param, words)


@pytest.mark.parametrize(("body", "param", "words"), _CHAT)
async def test_fields_of_chat(body: dict[str, Any], param: str, words: list[str]):
    await _refuses("/v1/chat/completions", body, param, words)


@pytest.mark.parametrize(("body", "param", "words"), _TEXT)
async def test_fields_of_completions(body: dict[str, Any], param: str, words: list[str]):
    await _refuses("/v1/completions", body, param, words)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"not json", b'{"model": "tiny", "prompt": "a" "b"}', b'{"prompt": "\\ud800", "model": "tiny"}',
        b'{"prompt": "\\udc00 x", "model": "tiny"}', b'{"prompt": "\xff", "model": "tiny"}', b"[" * 10_000,
        b'{"model": "tiny", "prompt": "a",}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_what_is_no_json(path: str, body: bytes):
    check(await post(make_app(says("x")), path, body), 400, None, "not valid JSON", code="invalid_json")


@pytest.mark.parametrize("body", [[], "text", 5, None, True])
async def test_json_that_is_no_object(body: Any):
    check(await post(make_app(says("x")), "/v1/completions", body), 400, None, "not a JSON object")


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
async def test_numbers_that_are_none(value: bytes):
    body = b'{"model": "tiny", "prompt": "a", "temperature": ' + value + b"}"
    check(await post(make_app(says("x")), "/v1/completions", body), 400, "temperature", "temperature")


async def test_an_unknown_model_is_told_which_is_served():
    app = make_app(says("x"))
    for path, base in (
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", TEXT),
        ("/tokenize", {"prompt": "a"}),
    ):
        check(
            await post(app, path, base | {"model": "gpt-4"}),
            404,
            "model",
            "gpt-4",
            "tiny",
            code="model_not_found",
        )
    check(await get(app, "/v1/models/org/gpt-4"), 404, "model", "org/gpt-4", "tiny", code="model_not_found")


async def test_routes_and_methods_that_do_not_exist():
    app = make_app(says("x"))
    check(await get(app, "/v1/embeddings"), 404, None, "GET /v1/embeddings", code="not_found")
    response = await get(app, "/v1/chat/completions")
    check(response, 405, None, "use POST", code="method_not_allowed")
    assert response.headers["allow"] == "POST"
    check(await post(app, "/v1/models", {}), 405, None, "use GET")


@pytest.mark.parametrize("length", [399, 400, 401, 1000])
async def test_a_prompt_beyond_the_context_states_both_numbers(length: int):
    backend = says("x")
    response = await post(
        make_app(backend), "/v1/completions", TEXT | {"prompt": [50] * length, "max_tokens": 1}
    )
    if length < 400:
        assert response.status_code == 200
    else:
        check(response, 400, "prompt", str(length), "400", "shorten", code="context_length_exceeded")
        assert not backend.requests


async def test_a_conversation_beyond_the_context_states_both_numbers():
    long = [{"role": "user", "content": "z7" * 600}]
    response = await post(make_app(says("x")), "/v1/chat/completions", CHAT | {"messages": long})
    check(response, 400, "messages", "400", "shorten", code="context_length_exceeded")


async def test_prompt_and_answer_beyond_the_context():
    app = make_app(says("x"))
    body = TEXT | {"prompt": [50] * 390}
    check(
        await post(app, "/v1/completions", body | {"max_tokens": 11}),
        400, "max_tokens", "390", "11", "400", "to 10 or less", code="context_length_exceeded",
    )  # fmt: skip
    assert (await post(app, "/v1/completions", body | {"max_tokens": 10})).status_code == 200


async def test_what_is_not_asked_for_is_cut_to_what_fits():
    backend = says("x")
    app = make_app(backend)
    await post(app, "/v1/completions", TEXT | {"prompt": [50] * 390})
    await post(app, "/v1/completions", TEXT | {"prompt": [50] * 10})
    await post(app, "/v1/chat/completions", CHAT)
    assert [request.sampling.max_tokens for request in backend.requests][:2] == [10, 16]
    assert backend.requests[2].sampling.max_tokens == 400 - len(backend.requests[2].tokens) // 4


class _NoTokenizer(Text):
    """A tokenizer that fails when it is used."""

    def __init__(self) -> None:
        self.used = False
        super().__init__(tiny_core())
        self.used = False

    def encode(self, text: str) -> Any:
        if len(text) < 1000:  # what a tokenizer is asked when it is made
            return super().encode(text)
        self.used = True
        raise AssertionError("tokenised")

    def render(self, messages: Any, **options: Any) -> Any:
        self.used = True
        raise AssertionError("rendered")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", TEXT | {"prompt": "x" * 5_000_000}, "prompt"),
        (
            "/v1/chat/completions",
            CHAT | {"messages": [{"role": "user", "content": "x" * 2_500_000}] * 2},
            "messages",
        ),
        ("/tokenize", {"prompt": "x" * 5_000_000}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 5_000_000}]}, "messages"),
    ],
    ids=["text", "chat", "tokenize", "tokenize messages"],
)
async def test_a_huge_prompt_is_refused_before_it_is_tokenised(path: str, body: dict[str, Any], param: str):
    text = _NoTokenizer()
    app = make_app(says("x"), text)
    check(await post(app, path, body), 400, param, "5000000", "max_prompt_characters")
    assert not text.used


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("size", [2000, 100_000])
async def test_a_body_that_is_too_large(declared: bool, size: int):
    backend = says("x")
    app = make_app(backend, max_body="1KiB")
    data = json.dumps(TEXT | {"prompt": "x" * size}).encode()

    async def stream():
        for at in range(0, len(data), 500):
            yield data[at : at + 500]

    async with client(app) as http:
        response = await http.post("/v1/completions", content=data if declared else stream())
    check(response, 413, None, "1KiB", "max_body", code="request_too_large")
    assert not backend.requests


async def test_a_template_that_gives_nothing():
    text = Text(tiny_core(), lambda messages, opening: "")
    check(
        await post(make_app(says("x"), text), "/v1/chat/completions", CHAT), 400, "messages", "empty prompt"
    )


async def test_a_model_without_template():
    response = await post(make_app(says("x"), Text(tiny_core())), "/v1/chat/completions", CHAT)
    check(response, 400, "messages", "no chat template", "/v1/completions", code="chat_template_failed")


@pytest.mark.parametrize("error", [KeyError("content"), RecursionError(), ValueError("roles must alternate")])
async def test_a_template_that_fails(error: Exception):
    def template(messages: Any, opening: bool) -> str:
        raise error

    response = await post(make_app(says("x"), Text(tiny_core(), template)), "/v1/chat/completions", CHAT)
    check(response, 400, "messages", str(error) or "RecursionError", code="chat_template_failed")


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/tokenize", {}, "prompt", ["either `prompt` or `messages`"]),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "x"}]}, "prompt", ["either"]),
        ("/tokenize", {"prompt": 5}, "prompt", ["string"]),
        ("/tokenize", {"prompt": "a", "bogus": 1}, "bogus", ["leave it out"]),
        ("/tokenize", {"messages": []}, "messages", ["at least 1"]),
        ("/detokenize", {}, "tokens", ["required"]),
        ("/detokenize", {"tokens": "5"}, "tokens", ["array"]),
        ("/detokenize", {"tokens": [5, -1]}, "tokens[1]", ["0 to"]),
        ("/detokenize", {"tokens": [10**9]}, "tokens[0]", ["0 to"]),
    ],
)
async def test_tokenize_and_detokenize(path: str, body: dict[str, Any], param: str, words: list[str]):
    await _refuses(path, body, param, words)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_FIELDS = [
    "messages", "prompt", "max_tokens", "stop", "stream", "stream_options", "seed", "temperature", "logit_bias",
    "tools", "stop_token_ids", "metadata", "content", "cache_salt",
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(_FIELDS), _json, max_size=4))
@settings(max_examples=60, deadline=None)
def test_nothing_a_client_sends_is_the_servers_fault(runner: Any, changes: dict[str, Any]):
    app = make_app(says("hi"))
    for path, base in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT), ("/tokenize", {})):
        response = runner.run(post(app, path, base | changes))
        assert response.status_code in (200, 400), response.text
        if response.status_code == 400:
            check(response, 400, response.json()["error"]["param"])


@given(st.binary(max_size=40))
@settings(max_examples=60, deadline=None)
def test_no_bytes_are_the_servers_fault(runner: Any, data: bytes):
    check(runner.run(post(make_app(says("hi")), "/v1/completions", data)), 400, None)
