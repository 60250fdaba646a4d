"""The whole engine over models with windows and recurrent state, with every policy, a store that fails, requests that
are aborted and retracted: each answer is what it would be alone and uncached, every account adds up, nothing leaks."""

import random
from collections.abc import Iterator

import pytest
from engine_fakes import EngineClient
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_store import shared_store
from side_model import BOTH, RECURRENT, SLIDING, VOCAB, SideModel, expected_output

from stratakv.kernels.shapes import ModelShapes
from stratakv.storage.hierarchy_check import idle_problems
from stratakv.storage.policies.eviction import EVICTION_POLICIES
from stratakv.storage.policies.prefetch import PREFETCH_POLICIES
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.stores.faulty import FaultRates
from stratakv.storage.tiers import Miss

ALL = {"sliding": SLIDING, "recurrent": RECURRENT, "both": BOTH}


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


def client_of(shapes: ModelShapes, **options: object) -> EngineClient:
    return EngineClient(SideModel(), shapes, **{"token_budget": 16, "max_running": 6, **options})


def ask(client: EngineClient, shapes: ModelShapes, id: str, tokens: list[int], count: int = 4):
    client.send(id, tokens, count)
    client.work()
    assert client.output(id) == expected_output(shapes, tokens, count)
    assert idle_problems(client.head.hierarchy) == []
    return client.told[id][-1].usage


@pytest.mark.parametrize("name", ALL)
def test_a_conversation_is_never_computed_twice(name: str) -> None:
    shapes = ALL[name]
    client, tokens, known = client_of(shapes), prompt(1, 33), 0
    for turn in range(5):
        usage = ask(client, shapes, str(turn), tokens, 9)
        if turn:
            assert usage.device == known // 4 * 4, usage
        known = len(tokens) + 8
        tokens = tokens + client.output(str(turn)) + prompt(10 + turn, 7)


@pytest.mark.parametrize("name", ALL)
def test_it_comes_back_from_host_and_from_the_store(name: str) -> None:
    shapes, store, tokens = ALL[name], shared_store(), prompt(1, 40)
    client = client_of(shapes, device=16, host=80, store=store)
    ask(client, shapes, "first", tokens)
    for seed in (2, 3):
        ask(client, shapes, f"flood {seed}", prompt(seed, 50))
    assert ask(client, shapes, "again", tokens).host == 36
    other = client_of(shapes, store=store)
    assert ask(other, shapes, "there", tokens).store == 36


def test_a_shared_prefix_is_computed_twice_and_then_never_again() -> None:
    client, shared = client_of(RECURRENT, device=200, host=200), prompt(1, 64)
    usages = [ask(client, RECURRENT, str(n), shared + prompt(n + 2, 36)) for n in range(10)]
    assert [usage.device + usage.host for usage in usages] == [0, 0] + [64] * 8
    assert usages[1].misses == {
        str(Miss.CHECKPOINT_MISSING): 64,
        str(Miss.NEVER_SEEN): 32,
        str(Miss.PAGE_TAIL): 4,
    }


def test_checkpoints_within_a_prompt_serve_those_who_leave_it_early() -> None:
    client, tokens = client_of(RECURRENT, cache={"checkpoint_interval": 16}), prompt(1, 60)
    ask(client, RECURRENT, "all", tokens)
    assert ask(client, RECURRENT, "part", tokens[:40] + prompt(2, 9)).device == 32


@st.composite
def circumstances(draw: st.DrawFn) -> dict[str, object]:
    """A small replica with any policies."""
    cache = {
        "write_policy": draw(st.sampled_from(WRITE_POLICIES.names())),
        "eviction_policy": draw(st.sampled_from(EVICTION_POLICIES.names())),
        "checkpoint_interval": draw(st.sampled_from([0, 8])),
    }
    return {
        "device": draw(st.integers(16, 40)),
        "host": draw(st.sampled_from([8, 24, 64])),
        "token_budget": draw(st.sampled_from([8, 16, 40])),
        "prefetch_policy": draw(st.sampled_from(PREFETCH_POLICIES.names())),
        "cache": cache,
    }


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(ALL)))
def test_any_mix_of_requests_says_what_each_alone_would(data: st.DataObject, name: str) -> None:
    shapes = ALL[name]
    rates = FaultRates(delay=0.2, delay_seconds=0.002, error=0.05, short=0.1, fail=0.1, lose=0.1, flip=0.2)
    faults = data.draw(st.sampled_from([None, rates]))
    store = shared_store(capacity=data.draw(st.sampled_from([6_000, 1 << 20])), faults=faults)
    clients = [client_of(shapes, store=store, **data.draw(circumstances())) for _ in range(2)]
    trunk, sent = prompt(data.draw(st.integers(0, 3)), 24), 0
    for _ in range(data.draw(st.integers(1, 4))):
        client = data.draw(st.sampled_from(clients))
        asked: dict[str, tuple[list[int], int]] = {}
        for _ in range(data.draw(st.integers(1, 4))):
            tokens = trunk[: data.draw(st.integers(1, 24))] + prompt(data.draw(st.integers(0, 4)), 7)
            count, sent = data.draw(st.integers(1, 10)), sent + 1
            asked[str(sent)] = tokens, count
            client.send(str(sent), tokens, count)
        for _ in range(data.draw(st.integers(0, 6))):
            one_step(client)
        for id in data.draw(st.sets(st.sampled_from(sorted(asked)), max_size=1)):
            client.engine.abort(b"gateway", id)
            del asked[id]
        client.work()
        for id, (tokens, count) in asked.items():
            assert client.output(id) == expected_output(shapes, tokens, count)
            assert client.told[id][-1].usage.adds_up
        assert idle_problems(client.head.hierarchy) == []


def one_step(client: EngineClient) -> None:
    client.engine._take_inbox()
    plan = client.head.plan()
    if plan is not None:
        client.deliver(plan.number, client.head.absorb(client.engine._rank.execute(plan)))


def turns() -> Iterator[int]:
    yield from range(1, 13)


def test_pages_and_checkpoints_in_one_buffer_serve_what_they_should() -> None:
    client = client_of(RECURRENT, device=30, host=64, cache={"unified": True})
    for n in turns():
        tokens = prompt(n % 4, 30 + n)
        ask(client, RECURRENT, f"{n} first", tokens)
        assert ask(client, RECURRENT, f"{n} again", tokens).device == (len(tokens) - 1) // 4 * 4
