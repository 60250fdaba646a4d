import asyncio
import re
from typing import Any

import pytest
from api_fakes import (
    EOS,
    FakeBackend,
    card,
    chatml,
    check,
    deltas,
    get,
    make_app,
    post,
    says,
    tiny_core,
    tiny_text,
    usage,
)

from stratakv.api.text import Text
from stratakv.cluster.messages import FinishReason

pytestmark = pytest.mark.anyio

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def test_health_says_that_the_process_lives():
    response = await get(make_app(FakeBackend(lambda request: [], served=None, ready=0)), "/health")
    assert response.status_code == 200 and response.json() == {"status": "ok"}


async def test_ready_waits_for_a_replica_and_the_tokenizer():
    backend = says("x")
    backend.served, backend.ready = None, 0
    app = make_app(backend)
    response = await get(app, "/ready")
    check(response, 503, None, "0 of 1 replicas")
    assert response.headers["retry-after"]
    backend.served, backend.ready = card(), 1
    check(await get(app, "/ready"), 503, None, "tokenizer")
    async with asyncio.timeout(10):
        while (await get(app, "/ready")).status_code != 200:
            await asyncio.sleep(0.01)
    backend.ready = 0
    check(await get(app, "/ready"), 503, None, "0 of 1 replicas")


async def test_models():
    app = make_app(FakeBackend(lambda request: [], served=card(name="org/tiny")))
    [entry] = (await get(app, "/v1/models")).json()["data"]
    assert entry["id"] == "org/tiny" and entry["object"] == "model" and entry["max_model_len"] == 400
    assert (await get(app, "/v1/models/org/tiny")).json() == entry
    empty = make_app(FakeBackend(lambda request: [], served=None))
    assert (await get(empty, "/v1/models")).json() == {"object": "list", "data": []}
    check(await get(empty, "/v1/models/tiny"), 503, None, "/ready")


async def test_tokenize_and_back():
    app = make_app(says("x"), Text(tiny_core(lead=True), chatml))
    text = "hello wörld 🎉 <|im_end|>"
    ids = tiny_text().encode(text).ids.tolist()
    answer = (await post(app, "/tokenize", {"prompt": text})).json()
    assert answer == {"count": len(ids) + 1, "max_model_len": 400, "tokens": [0, *ids]}
    answer = (await post(app, "/tokenize", {"prompt": text, "add_special_tokens": False})).json()
    assert answer["tokens"] == ids
    assert (await post(app, "/detokenize", {"model": "tiny", "tokens": ids})).json() == {"prompt": text}
    assert (await post(app, "/detokenize", {"tokens": []})).json() == {"prompt": ""}
    strings = (await post(app, "/tokenize", {"prompt": "<|im_end|>", "return_token_strs": True})).json()
    assert strings["token_strs"] == ["<|endoftext|>", "<|im_end|>"]


@pytest.mark.parametrize("opening", [True, False])
async def test_tokenize_messages(opening: bool):
    app = make_app(says("x"), Text(tiny_core(lead=True), chatml))
    body = {"messages": CHAT["messages"], "add_generation_prompt": opening}
    ids = (await post(app, "/tokenize", body)).json()["tokens"]
    assert ids == tiny_text().encode(chatml([{"role": "user", "content": "hi"}], opening)).ids.tolist()


async def test_the_empty_prompt_has_no_tokens():
    assert (await post(make_app(says("x")), "/tokenize", {"prompt": ""})).json()["tokens"] == []


def _values(text: str, name: str) -> dict[str, float]:
    return {
        labels or "": float(value)
        for labels, value in re.findall(rf"^stratakv_{name}(?:{{(.*?)}})? (\S+)$", text, re.MULTILINE)
    }


async def test_metrics_count_what_was_served():
    def script(request: Any) -> Any:
        return deltas(request, [60, 61, EOS], FinishReason.STOP, account=usage(request, device=8, host=4))

    app = make_app(FakeBackend(script))
    for _ in range(2):
        await post(app, "/v1/chat/completions", CHAT)
    await post(app, "/v1/chat/completions", {})
    response = await get(app, "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = response.text
    by_tier = _values(text, "prompt_tokens_by_tier_total")
    assert by_tier == {'tier="device"': 16, 'tier="host"': 8, 'tier="store"': 0, 'tier="computed"': 2}
    assert sum(by_tier.values()) == _values(text, "prompt_tokens_total")[""] == 26
    assert _values(text, "computed_tokens_by_reason_total") == {'reason="new"': 2}
    assert _values(text, "output_tokens_total")[""] == 6
    assert _values(text, "time_to_first_token_seconds_count")[""] == 2
    assert _values(text, "inter_token_seconds_count")[""] == 4
    assert _values(text, "requests_running")[""] == 3 and _values(text, "requests_waiting")[""] == 5
    assert _values(text, "requests_total") == {
        'route="/v1/chat/completions",status="200"': 2,
        'route="/v1/chat/completions",status="400"': 1,
    }
    assert _values(text, "token_map_lookups_total") == {
        'outcome="miss"': 1, 'outcome="special"': 1, 'outcome="end"': 0,
    }  # fmt: skip
    assert _values(text, "token_map_bytes")[""] > 0


async def test_two_apps_do_not_share_metrics():
    first, second = make_app(says("x")), make_app(says("x"))
    await post(first, "/v1/chat/completions", CHAT)
    assert _values((await get(second, "/metrics")).text, "output_tokens_total")[""] == 0
