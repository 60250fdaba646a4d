"""What client libraries send without meaning anything by it is taken without a word."""

import json
from typing import Any

import pytest
from api_fakes import client, make_app, post, says

pytestmark = pytest.mark.anyio

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "tiny", "prompt": "hi"}


_NEUTRAL: dict[str, list[Any]] = {
    "user": ["me", None], "metadata": [{"a": "b"}, None], "store": [True, False, None], "service_tier": ["auto"],
    "parallel_tool_calls": [True, False], "prompt_cache_key": ["k"], "prompt_cache_retention": ["24h"],
    "safety_identifier": ["s"], "prediction": [{"type": "content", "content": "x"}], "n": [1, None],
    "best_of": [1, None], "presence_penalty": [0, 0.0, None], "frequency_penalty": [0, 0.0, None],
    "logit_bias": [{}, None], "echo": [False, None], "logprobs": [None], "response_format": [{"type": "text"}, None],
    "seed": [None, -5], "stop": [None, [], "xyz", ["x", "y"]], "temperature": [None, 0, 2, 0.5], "top_p": [None, 1],
    "top_k": [None, -1, 0, 5], "max_tokens": [None, 3], "stream": [None, False], "stream_options": [None],
    "cache_salt": [None, "", "s"], "extra_key": [None, "", "k"], "ignore_eos": [None, False],
    "stop_token_ids": [None, [], [5]], "return_token_ids": [None, False], "repetition_penalty": [1, 1.0],
    "min_p": [0], "skip_special_tokens": [True],
}  # fmt: skip
_NEUTRAL_CHAT: dict[str, list[Any]] = {
    "logprobs": [False, None], "top_logprobs": [0, None], "tools": [[], None], "tool_choice": ["none", "auto", None],
    "functions": [[], None], "function_call": ["none", None], "modalities": [["text"], None], "audio": [None],
    "reasoning_effort": [None], "verbosity": [None, "medium"], "max_completion_tokens": [None, 3],
    "web_search_options": [None], "chat_template_kwargs": [{}, None],
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "base", "accepted"),
    [
        ("/v1/chat/completions", CHAT, _NEUTRAL | _NEUTRAL_CHAT),
        ("/v1/completions", TEXT, _NEUTRAL | {"suffix": [None, ""]}),
    ],
    ids=["chat", "text"],
)
async def test_fields_that_change_nothing_are_accepted(
    path: str, base: dict[str, Any], accepted: dict[str, Any]
):
    app = make_app(says("hi"))
    async with client(app) as http:
        for field, values in accepted.items():
            for value in values:
                response = await http.post(path, json=base | {field: value})
                assert response.status_code == 200, (field, value, response.text)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "function_call": None,
         "tool_calls": None},
        {"role": "assistant", "content": None}, {"role": "assistant"}, {"role": "system", "content": ""},
        {"role": "developer", "content": "be brief"}, {"role": "user", "content": "x", "name": "me"},
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
    ],
)  # fmt: skip
async def test_messages_that_client_libraries_send(message: dict[str, Any]):
    response = await post(
        make_app(says("hi")), "/v1/chat/completions", CHAT | {"messages": [*CHAT["messages"], message]}
    )
    assert response.status_code == 200, response.text


async def test_text_parts_are_joined_and_developer_is_system():
    backend = says("hi")
    app = make_app(backend)
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    bodies = [
        [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}],
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one\ntwo"}],
    ]
    for messages in bodies:
        assert (await post(app, "/v1/chat/completions", CHAT | {"messages": messages})).status_code == 200
    assert backend.requests[0].tokens == backend.requests[1].tokens


async def test_the_sdks_extra_headers_and_content_types_do_not_matter():
    async with client(make_app(says("hi"))) as http:
        response = await http.post(
            "/v1/completions",
            content=json.dumps(TEXT),
            headers={"content-type": "text/plain", "authorization": "x"},
        )
    assert response.status_code == 200
