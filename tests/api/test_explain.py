"""POST /v1/explain over a backend that says what the test wants."""

from typing import Any

import pytest
from api_fakes import FakeBackend, check, make_app, post, prompt_ids, says, tiny_text
from hypothesis import given
from hypothesis import strategies as st

from stratakv.api.backend import ReplicaView
from stratakv.api.explain import account
from stratakv.cluster.explain import ExplainAnswer, Stretch
from stratakv.storage.keys import chain, namespace_seed

pytestmark = pytest.mark.anyio

SYSTEM = "You are a helper. Today is Monday. Answer in one word, and never in two."
NOTHING = [ReplicaView(0, ExplainAnswer())]


def chat(user: str, system: str = SYSTEM, **changes: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": "tiny", "messages": messages, **changes}


def talker(views: list[ReplicaView] | None = None) -> FakeBackend:
    backend = says("hello")
    backend.views = NOTHING if views is None else views
    return backend


async def explained(app: Any, body: dict[str, Any]) -> dict[str, Any]:
    response = await post(app, "/v1/explain", body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def nearest(before: dict[str, Any] | list[dict[str, Any]], after: dict[str, Any]) -> dict[str, Any]:
    """What is said of the prompt `after` when `before` was answered."""
    app = make_app(talker())
    for body in before if isinstance(before, list) else [before]:
        assert (await post(app, "/v1/chat/completions", body)).status_code == 200
    found: dict[str, Any] = (await explained(app, after))["nearest"]
    return found


async def test_the_replicas_are_asked_for_the_pages_that_the_request_would_have():
    backend = talker()
    app = make_app(backend)
    for salt in (None, "s"):
        body = chat("hi", cache_salt=salt)
        await post(app, "/v1/chat/completions", body)
        answer = await explained(app, body)
        ids = prompt_ids(backend.requests[-1])
        assert answer["prompt_tokens"] == len(ids) and answer["page_size"] == 4
        expected = chain(ids[:-1], 4, after=namespace_seed(None, salt))
        assert backend.explained[-1] == expected and answer["pages"] == len(expected)


async def test_each_replica_accounts_for_every_token():
    pages = (len(tiny_text().encode("the quick brown fox " * 12).ids) - 1) // 4
    assert pages > 20
    misses = (Stretch(2, "evicted"), Stretch(pages - 14, "never seen"))
    views = [
        ReplicaView(0, ExplainAnswer(device=5, host=3, store=4, misses=misses)),
        ReplicaView(2, trouble="it sleeps"),
    ]
    answer = await explained(make_app(talker(views)), {"prompt": "the quick brown fox " * 12})
    assert answer["pages"] == pages
    first, second = answer["replicas"]
    assert (first["device_tokens"], first["host_tokens"], first["store_tokens"]) == (20, 12, 16)
    assert first["computed_tokens"] == answer["prompt_tokens"] - 48
    tail = answer["prompt_tokens"] - 4 * pages
    assert first["misses"] == [
        {"first_token": 48, "tokens": 8, "reason": "evicted"},
        {"first_token": 56, "tokens": 4 * (pages - 14), "reason": "never seen"},
        {"first_token": 4 * pages, "tokens": tail, "reason": "page tail"},
    ]
    assert sum(miss["tokens"] for miss in first["misses"]) == first["computed_tokens"]
    assert second == {"replica": 2, "error": "it sleeps"}


async def test_a_changed_date_is_found_with_its_place_and_what_is_around_it():
    found = await nearest(chat("hi"), chat("hi", SYSTEM.replace("Monday", "Friday")))
    assert found["cause"] == "date or time" and "behind what stays the same" in found["remedy"]
    assert found["first_difference"] == found["common_tokens"] > 0
    assert found["common_pages"] == found["common_tokens"] // 4
    assert found["before"].endswith("Today is ") or found["before"].endswith("Today is")
    assert (found["here"]["text"] + found["here"]["after"]).lstrip().startswith("Friday")
    assert (found["there"]["text"] + found["there"]["after"]).lstrip().startswith("Monday")
    assert found["here"]["token"] != found["there"]["token"]


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        (chat("something else"), "other text"),
        (chat("hi", "Be a pirate, and answer like one would."), "another template or system prompt"),
        (chat("hi", SYSTEM.replace("two", "three")), "another template or system prompt"),
        (chat("hi", extra_key="x"), "another salt or extra key"),
        (chat("hi", cache_salt="s"), "another salt or extra key"),
        ({"model": "tiny", "prompt": "ab"}, "page too short"),
    ],
)
async def test_causes(after, cause):
    found = await nearest(chat("hi"), after)
    assert found["cause"] == cause and found["remedy"]


async def test_a_conversation_that_goes_on_differs_nowhere():
    before = chat("hi")
    after = {**before, "messages": [*before["messages"], {"role": "assistant", "content": "hello"}]}
    after["messages"].append({"role": "user", "content": "and now?"})
    found = await nearest(before, after)
    assert found["cause"] == "goes on"
    assert found["first_difference"] is found["here"] is found["there"] is None


async def test_nothing_said_yet():
    found = await nearest([], chat("hi"))
    assert (found["cause"], found["common_tokens"], found["here"]) == ("no history", 0, None)


async def test_what_was_said_under_a_salt_is_shown_to_nobody_else():
    secret = chat("the password is swordfish", cache_salt="mine")
    for stranger in ({}, {"cache_salt": "other"}, {"extra_key": "mine"}):
        guess = chat("the password is sword", **stranger)
        found = await nearest(secret, guess)
        assert (found["cause"], found["common_tokens"], found["other_namespace_tokens"]) == (
            "no history",
            0,
            0,
        )
        assert found["there"] is None and "ordfish" not in str(found)
    mine = await nearest(secret, chat("the password is secret", cache_salt="mine"))
    assert "wordfish" in mine["there"]["text"] + mine["there"]["after"]


async def test_a_whole_request_may_be_sent_as_it_is():
    body = chat(
        "hi", max_tokens=4, temperature=0, stream=True, stream_options={"include_usage": True}, priority=3
    )
    assert (await explained(make_app(talker()), body))["object"] == "explanation"


async def test_ids_are_a_prompt_too():
    backend = talker()
    answer = await explained(make_app(backend), {"prompt": list(range(3, 20))})
    assert answer["prompt_tokens"] == 17 and answer["token_map"] is None
    assert backend.explained == [chain(list(range(3, 19)), 4)]


async def test_bad_input():
    app = make_app(talker())
    both = {"prompt": "a", "messages": [{"role": "user", "content": "hi"}]}
    check(await post(app, "/v1/explain", both), 400, "prompt", "either `prompt` or `messages`")
    check(await post(app, "/v1/explain", {}), 400, "prompt", "either `prompt` or `messages`")
    check(await post(app, "/v1/explain", {"prompt": ""}), 400, "prompt", "empty")
    check(await post(app, "/v1/explain", {"prompt": "a", "model": "b"}), 404, "model", "not served")
    long = {"prompt": list(range(3, 20)) * 30}
    check(await post(app, "/v1/explain", long), 400, "prompt", "shorten", code="context_length_exceeded")
    check(await post(make_app(talker([])), "/v1/explain", {"prompt": "hello"}), 503, None, "No replica")


# -- the priority of a request


async def test_a_priority_goes_to_the_replica():
    backend = says("hello")
    app = make_app(backend)
    for body in (chat("hi"), chat("hi", priority=-8), chat("hi", priority=8)):
        assert (await post(app, "/v1/chat/completions", body)).status_code == 200
    await post(app, "/v1/completions", {"model": "tiny", "prompt": "hi", "priority": 2})
    assert [request.priority for request in backend.requests] == [0, -8, 8, 2]


@pytest.mark.parametrize("priority", [9, -9, 1.5, "high", True])
async def test_a_priority_out_of_range(priority):
    response = await post(make_app(says("hi")), "/v1/chat/completions", chat("hi", priority=priority))
    check(response, 400, "priority", "priority")


@given(st.integers(1, 40), st.data())
def test_a_replica_accounts_for_all_of_any_answer(pages, data):
    parts = [data.draw(st.integers(0, pages)) for _ in range(4)]
    total = sum(parts) or 1
    device, host, store, lost = (part * pages // total for part in parts)
    rest = pages - device - host - store - lost
    answer = ExplainAnswer(
        device=device, host=host, store=store, misses=(Stretch(lost, "evicted"), Stretch(rest, "never seen"))
    )
    tokens = 4 * pages + data.draw(st.integers(1, 4))
    found = account(ReplicaView(0, answer), tokens, page_size=4)
    served = found["device_tokens"] + found["host_tokens"] + found["store_tokens"]
    assert served + found["computed_tokens"] == tokens
    assert sum(miss["tokens"] for miss in found["misses"]) == found["computed_tokens"]
