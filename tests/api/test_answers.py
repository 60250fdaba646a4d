"""What a good answer looks like: whole and streamed, chat and text."""

import logging
from typing import Any

import pytest
from api_fakes import (
    EOS,
    FakeBackend,
    card,
    chat_text,
    deltas,
    events,
    get,
    make_app,
    post,
    prompt_ids,
    says,
    tiny_core,
    tiny_text,
    usage,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from stratakv.cluster.messages import Delta, FinishReason, Usage

pytestmark = pytest.mark.anyio

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "tiny", "prompt": "hi"}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


async def test_a_chat_answer():
    backend = says("hello wörld 🎉")
    response = await post(make_app(backend), "/v1/chat/completions", CHAT)
    body = response.json()
    assert (
        body["object"] == "chat.completion" and body["model"] == "tiny" and body["id"].startswith("chatcmpl-")
    )
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello wörld 🎉", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert "prompt_token_ids" not in body and "token_ids" not in choice
    [request] = backend.requests
    assert tiny_text().decode(prompt_ids(request)) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not backend.aborted


async def test_a_text_answer():
    response = await post(make_app(says("hello")), "/v1/completions", TEXT)
    body = response.json()
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop"}]


async def test_the_account_is_in_the_usage():
    def script(request: Any) -> list[Delta]:
        prompt = len(prompt_ids(request))
        account = Usage(
            prompt=prompt,
            device=4,
            host=2,
            store=1,
            computed=prompt - 7,
            recomputed=3,
            misses={"new": prompt - 7},
        )
        return deltas(request, [60, 61, EOS], FinishReason.STOP, account=account)

    body = (await post(make_app(FakeBackend(script)), "/v1/chat/completions", CHAT)).json()
    prompt = body["usage"]["prompt_tokens"]
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 3,
        "total_tokens": prompt + 3,
        "prompt_tokens_details": {
            "cached_tokens": 7,
            "cached_tokens_by_tier": {"device": 4, "host": 2, "store": 1},
            "computed_tokens": prompt - 7,
            "recomputed_tokens": 3,
            "computed_by_reason": {"new": prompt - 7},
        },
    }


async def test_the_last_account_counts():
    def script(request: Any) -> list[Delta]:
        first, last = usage(request), usage(request, device=4)
        return [
            Delta(id=request.id, tokens=(60,), usage=first),
            Delta(id=request.id, tokens=(61,), usage=last, finish=FinishReason.LENGTH),
        ]

    body = (await post(make_app(FakeBackend(script)), "/v1/completions", TEXT | {"prompt": [50] * 9})).json()
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 4


async def test_a_chat_stream():
    response = await post(make_app(says("hello wörld 🎉")), "/v1/chat/completions", CHAT | STREAM)
    chunks = events(response)
    assert chunks[-1] == "[DONE]" and chunks.count("[DONE]") == 1
    first, *middle, closing, account = chunks[:-1]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chat_text(middle) == "hello wörld 🎉"
    assert closing["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert all(chunk["usage"] is None for chunk in [first, *middle, closing])
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in [first, *middle])
    assert account["choices"] == [] and account["usage"]["completion_tokens"] > 5
    assert {chunk["object"] for chunk in chunks[:-1]} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks[:-1]}) == 1


async def test_a_stream_without_usage_does_not_mention_it():
    chunks = events(await post(make_app(says("hello")), "/v1/completions", TEXT | {"stream": True}))
    assert all("usage" not in chunk for chunk in chunks[:-1])
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "hello"


_tokens = st.lists(st.integers(0, tiny_core().get_vocab_size() - 1), min_size=1, max_size=30)


@given(_tokens, st.integers(1, 4), st.lists(st.text("abe lo", min_size=1, max_size=3), max_size=3))
@settings(max_examples=60, deadline=None)
def test_streamed_and_whole_are_equal(runner: Any, tokens: list[int], per_step: int, stops: list[str]):
    backend = FakeBackend(lambda request: deltas(request, tokens, FinishReason.LENGTH, per_step))
    app = make_app(backend, token_map_memory=0)
    body = TEXT | {"stop": stops}
    whole = runner.run(post(app, "/v1/completions", body)).json()
    chunks = events(runner.run(post(app, "/v1/completions", body | STREAM)))
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks[:-2])
    assert text == whole["choices"][0]["text"]
    assert chunks[-3]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert chunks[-2]["usage"] == whole["usage"]
    full = tiny_core().decode(tokens, skip_special_tokens=True)
    ends = [(full.find(stop) + len(stop), full.find(stop)) for stop in stops if stop in full]
    assert text == (full[: min(ends)[1]] if ends else full)
    stopped = any(stop in full for stop in stops)
    assert whole["choices"][0]["finish_reason"] == ("stop" if stopped else "length")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_request_at_the_backend(stream: bool):
    backend = says("one two END three four five six", FinishReason.LENGTH)
    app = make_app(backend)
    response = await post(
        app, "/v1/chat/completions", CHAT | {"stop": ["END", "zzz"]} | (STREAM if stream else {})
    )
    if stream:
        chunks = events(response)
        text, reason, account = (
            chat_text(chunks),
            chunks[-3]["choices"][0]["finish_reason"],
            chunks[-2]["usage"],
        )
    else:
        body = response.json()
        text, reason, account = (
            body["choices"][0]["message"]["content"],
            body["choices"][0]["finish_reason"],
            body["usage"],
        )
    assert (text, reason) == ("one two ", "stop")
    assert backend.aborted == [backend.requests[0].id]
    all_tokens = len(tiny_text().encode("one two END three four five six").ids)
    assert 0 < account["completion_tokens"] < all_tokens


async def test_token_ids_are_returned_on_request():
    backend = says("hello 🎉")
    app = make_app(backend)
    said = [*tiny_text().encode("hello 🎉").ids, EOS]
    wants = {"return_token_ids": True}

    chat = (await post(app, "/v1/chat/completions", CHAT | wants)).json()
    assert chat["prompt_token_ids"] == prompt_ids(backend.requests[-1])
    assert chat["choices"][0]["token_ids"] == said
    text = (await post(app, "/v1/completions", TEXT | wants)).json()
    assert text["choices"][0]["prompt_token_ids"] == prompt_ids(backend.requests[-1])
    assert text["choices"][0]["token_ids"] == said

    chunks = events(await post(app, "/v1/chat/completions", CHAT | wants | {"stream": True}))[:-1]
    assert [chunk.get("prompt_token_ids") is not None for chunk in chunks] == [True] + [False] * (
        len(chunks) - 1
    )
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == said
    chunks = events(await post(app, "/v1/completions", TEXT | wants | {"stream": True}))[:-1]
    assert chunks[0]["choices"][0]["prompt_token_ids"] == prompt_ids(backend.requests[-1])
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == said


async def test_wishes_reach_the_backend():
    backend = says("x")
    body = TEXT | {
        "prompt": [5, 6, 7], "max_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_k": 9, "seed": -3,
        "stop_token_ids": [8, 9], "ignore_eos": True, "cache_salt": "salt", "extra_key": "key",
    }  # fmt: skip
    await post(make_app(backend), "/v1/completions", body)
    [request] = backend.requests
    assert prompt_ids(request) == [5, 6, 7]
    assert (request.cache_salt, request.extra_key) == ("salt", "key")
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.5, 0.25, 9)
    assert (sampling.seed, sampling.stop_token_ids, sampling.ignore_eos) == (-3, (8, 9), True)


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [5, 6], [[5, 6]]])
async def test_one_prompt_in_each_form(prompt: Any):
    backend = says("x")
    await post(make_app(backend), "/v1/completions", TEXT | {"prompt": prompt})
    ids = tiny_text().encode("hi").ids.tolist() if prompt in ("hi", ["hi"]) else [5, 6]
    assert prompt_ids(backend.requests[0]) == ids


async def test_a_seed_is_drawn_when_there_is_none():
    backend = says("x")
    app = make_app(backend)
    for _ in range(3):
        await post(app, "/v1/completions", TEXT)
    seeds = {request.sampling.seed for request in backend.requests}
    assert len(seeds) == 3 and all(0 <= seed < 2**63 for seed in seeds)
    assert len({request.id for request in backend.requests}) == 3


async def test_an_eos_that_the_tokenizer_would_show_is_hidden():
    """Some models end with a token that their tokenizer does not call special."""
    letter = tiny_text().encode("x").ids[0]
    backend = FakeBackend(
        lambda request: deltas(request, [60, letter], FinishReason.STOP), served=card(eos_token_ids=(letter,))
    )
    body = (await post(make_app(backend), "/v1/completions", TEXT)).json()
    assert body["choices"][0]["text"] == tiny_core().decode([60]) and body["usage"]["completion_tokens"] == 2


async def test_a_visible_stop_token_is_shown():
    letter = tiny_text().encode("x").ids[0]
    backend = FakeBackend(lambda request: deltas(request, [60, letter], FinishReason.STOP))
    body = (await post(make_app(backend), "/v1/completions", TEXT | {"stop_token_ids": [letter]})).json()
    assert body["choices"][0]["text"] == tiny_core().decode([60, letter])


async def test_the_access_log_reads_like_sentences(caplog: pytest.LogCaptureFixture):
    def script(request: Any) -> list[Delta]:
        return deltas(request, [60, 61, EOS], FinishReason.STOP, account=usage(request, device=8, host=4))

    app = make_app(FakeBackend(script))
    with caplog.at_level(logging.INFO, "stratakv.access"):
        await post(app, "/v1/chat/completions", CHAT)
        await post(app, "/v1/completions", {"model": "tiny"})
        await get(app, "/health")
        await get(app, "/evil%0Aforged line")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert (
        lines[0].startswith("chat ") and "13 prompt tokens (8 device, 4 host, 1 computed), 3 out" in lines[0]
    )
    assert "first token after" in lines[0] and lines[0].endswith(" ms, finished by stop")
    assert lines[1] == "POST /v1/completions ended with 400: `prompt` is missing; it is required."
    assert "\n" not in lines[2] and "forged" in lines[2]
