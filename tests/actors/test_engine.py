"""The engine in one process over a model that notices every wrong byte: greedy tokens with the cache on equal
those without."""

import random
from collections.abc import Callable

import pytest
from engine_fakes import Client, expected_output
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_store import shared_store

from stratakv.actors.worker.engine import DRAINING, OVERLOADED
from stratakv.cluster.messages import FinishReason
from stratakv.storage.hierarchy_check import idle_problems
from stratakv.storage.keys import chain
from stratakv.storage.stores.faulty import FaultRates
from stratakv.storage.stores.settings import StoreSettings


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(99), k=length)


def idle(client: Client) -> list[str]:
    return idle_problems(client.head.hierarchy)


def test_the_second_time_comes_from_the_device_and_says_the_same() -> None:
    client = Client()
    first = client.ask("a", prompt(1, 21))
    assert first.usage and (first.usage.prompt, first.usage.computed) == (21, 21)
    again = client.ask("b", prompt(1, 21))
    assert again.usage and (again.usage.device, again.usage.computed) == (20, 1)
    assert idle(client) == []


def test_a_continuation_reuses_prompt_and_output() -> None:
    client = Client()
    history = prompt(2, 13)
    client.ask("a", history, max_tokens=9)
    history += client.output("a")
    more = client.ask("b", history + prompt(3, 5))
    assert more.usage and more.usage.device == (13 + 9 - 1) // 4 * 4


def test_what_left_the_device_comes_back_from_host() -> None:
    client = Client(device=12, host=64)
    client.ask("a", prompt(1, 30))
    client.ask("b", prompt(2, 30))
    client.ask("c", prompt(3, 30))
    back = client.ask("d", prompt(1, 30))
    assert back.usage and back.usage.host == 28 and back.usage.device == 0
    assert idle(client) == []


def test_the_account_adds_up_and_names_its_reasons() -> None:
    client = Client(device=10, host=0)
    client.ask("a", prompt(1, 30))
    client.ask("b", prompt(2, 30))
    usage = client.ask("c", prompt(1, 31)).usage
    assert usage and usage.device + usage.host + usage.store + usage.computed == usage.prompt == 31
    assert sum(usage.misses.values()) == usage.computed and usage.misses["evicted"] >= 24


def test_a_salt_is_a_wall() -> None:
    client = Client()
    client.ask("a", prompt(1, 21))
    usage = client.ask("b", prompt(1, 21), salt="mine").usage
    assert usage and usage.device == 0 and usage.misses["never seen"] == 20


def test_a_long_prompt_is_cut_to_the_budget_while_others_decode() -> None:
    client = Client(token_budget=16, max_running=4)
    client.send("short", prompt(1, 5), max_tokens=12)
    client.send("long", prompt(2, 100), max_tokens=3)
    client.work()
    assert client.output("short") == expected_output(prompt(1, 5), 12)
    assert client.output("long") == expected_output(prompt(2, 100), 3)
    assert 2 in client.sizes


def test_retraction_changes_no_token() -> None:
    client = Client(device=16, host=32, max_running=8)
    for i in range(6):
        client.send(str(i), prompt(i, 7), max_tokens=20)
    client.work()
    assert client.head.scheduler.retractions > 0
    for i in range(6):
        assert client.output(str(i)) == expected_output(prompt(i, 7), 20)
    recomputed = [client.told[str(i)][-1].usage.recomputed for i in range(6)]  # type: ignore[union-attr]
    assert max(recomputed) > 0 and idle(client) == []


def test_a_request_as_large_as_the_pool_runs_alone() -> None:
    client = Client(device=8, host=4, limit=32)
    client.ask("before", prompt(9, 20))
    last = client.ask("all", prompt(1, 20), max_tokens=12)
    assert last.finish is FinishReason.LENGTH and idle(client) == []


def test_an_abort_frees_everything_at_any_time() -> None:
    for steps in range(6):
        client = Client(token_budget=8, max_running=4)
        client.send("a", prompt(1, 30), max_tokens=50)
        client.send("b", prompt(1, 30), max_tokens=3)
        client.engine._take_inbox()
        for _ in range(steps):
            plan = client.head.plan()
            assert plan is not None
            client.deliver(0, client.head.absorb(client.engine._rank.execute(plan)))
        client.engine.abort(b"gateway", "a")
        client.work()
        assert len(client.output("a") if steps > 3 else []) < 50
        assert client.output("b") == expected_output(prompt(1, 30), 3)
        assert idle(client) == []


def test_the_thread_runs_sleeps_answers_checks_and_stops() -> None:
    client = Client()
    client.engine.start()
    client.send("a", prompt(1, 21))
    assert client.engine.idle_check(deadline=20) == []
    assert client.output("a") == expected_output(prompt(1, 21), 4)
    assert client.engine.heartbeat().step > 0 and client.engine.heartbeat().step_age == 0
    client.engine.drain(deadline=5)
    client.send("late", prompt(1, 21))
    client.engine.idle_check(deadline=20)
    failure = client.told["late"][0].failure
    assert failure and failure.code == DRAINING
    client.engine.stop()


def test_stopping_in_the_middle_tells_everyone() -> None:
    client = Client()
    client.engine.start()
    client.send("a", prompt(1, 21), max_tokens=5000)
    while "a" not in client.told:
        pass
    client.engine.stop()
    failure = client.told["a"][-1].failure
    assert failure and failure.code == DRAINING


def test_a_full_queue_refuses_and_says_how_to_go_on() -> None:
    client = Client(max_waiting=2)
    for i in range(3):
        client.send(str(i), prompt(i, 5))
    client.work()
    failure = client.told["2"][0].failure
    assert failure and failure.code == OVERLOADED and "scheduler.max_waiting" in failure.message
    assert client.output("0") == expected_output(prompt(0, 5), 4)


def test_logits_that_are_no_numbers_fail_their_request_alone() -> None:
    client = Client()
    client.model.poison = 99
    client.send("bad", [1, 2, 3, 99, 5, 6, 7, 8, 9])
    client.send("good", prompt(1, 21))
    client.work()
    failure = client.told["bad"][-1].failure
    assert failure and failure.code == "server_error"
    assert client.output("good") == expected_output(prompt(1, 21), 4)
    assert client.head.hierarchy.tree.match(chain([1, 2, 3, 99], 4)).held == 0, "nothing of it may be kept"
    assert idle(client) == []


def test_an_engine_that_broke_says_so_in_its_heartbeat() -> None:
    client = Client()
    client.model.fail_on_step = 2
    client.engine.start()
    client.send("a", prompt(1, 21))
    client.engine._thread.join(20)
    with pytest.raises(RuntimeError, match="the model broke"):
        client.engine.heartbeat()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_mix_of_requests_says_what_each_alone_would(data: st.DataObject) -> None:
    client = Client(
        device=data.draw(st.integers(12, 40)),
        host=data.draw(st.sampled_from([0, 1, 8, 64])),
        page_size=data.draw(st.sampled_from([1, 4])),
        token_budget=data.draw(st.sampled_from([8, 16, 64])),
        max_running=8,
        limit=40 if data.draw(st.booleans()) else 10_000,
    )
    trunk = prompt(data.draw(st.integers(0, 3)), 16)
    limit = min(client.head._limit, client.head.hierarchy.room.device.capacity * client.page_size)
    sent: dict[str, tuple[list[int], int]] = {}
    for wave in range(data.draw(st.integers(1, 4))):
        for i in range(data.draw(st.integers(1, 5))):
            tokens = trunk[: data.draw(st.integers(1, 16))] + prompt(data.draw(st.integers(0, 5)), 6)
            tokens = tokens[: limit - 1]
            count = min(data.draw(st.integers(1, 10)), limit - len(tokens))
            sent[f"{wave}.{i}"] = tokens, count
            client.send(f"{wave}.{i}", tokens, count)
        client.work()
        assert idle(client) == []
        assert client.held_keys == set(client.head.hierarchy.tree.holdings().held)
    for id, (tokens, count) in sent.items():
        assert client.output(id) == expected_output(tokens, count)
        usage = client.told[id][-1].usage
        assert usage and usage.device + usage.host + usage.computed == len(tokens)
        assert sum(usage.misses.values()) == usage.computed


def test_a_history_comes_back_from_the_store_on_another_replica() -> None:
    store = shared_store()
    Client(store=store).ask("a", prompt(1, 30))
    other = Client(store=store)
    usage = other.ask("b", prompt(1, 30)).usage
    assert usage and (usage.store, usage.device, usage.host, usage.computed) == (28, 0, 0, 2)
    assert idle(other) == []
    again = other.ask("c", prompt(1, 30)).usage
    assert again and (again.device, again.store) == (28, 0)


def test_requests_join_a_prefetch_that_is_under_way() -> None:
    store = shared_store()
    Client(store=store).ask("a", prompt(1, 30))
    other = Client(store=store)
    for i in range(5):
        other.send(str(i), prompt(1, 30))
    other.work()
    for i in range(5):
        assert other.output(str(i)) == expected_output(prompt(1, 30), 4)
    assert other.head.hierarchy.prefetches.pages_landed == 7
    assert idle(other) == []


def test_a_prefetch_of_another_history_is_joined_for_what_is_shared() -> None:
    store, trunk = shared_store(), prompt(1, 20)
    there = Client(store=store)
    for branch in (2, 3):
        there.ask(str(branch), trunk + prompt(branch, 12))
    here = Client(store=store)
    for branch in (2, 3):
        here.send(str(branch), trunk + prompt(branch, 12))
    here.work()
    for branch in (2, 3):
        tokens = trunk + prompt(branch, 12)
        assert here.output(str(branch)) == expected_output(tokens, 4)
        usage = here.told[str(branch)][-1].usage
        # The other may have brought the trunk to the device by then; the branch can only come from the store.
        assert usage and usage.store >= 8 and usage.computed == 4
    assert here.head.hierarchy.prefetches.pages_landed == 5 + 2 + 2
    assert idle(here) == []


def test_what_the_store_has_beyond_the_host_is_fetched() -> None:
    store = shared_store()
    client = Client(device=12, host=12, store=store)
    for i in range(4):
        client.ask(str(i), prompt(i, 40))
    usage = client.ask("back", prompt(0, 40)).usage
    assert usage and usage.store > 0 and usage.store + usage.host + usage.device + usage.computed == 40
    assert idle(client) == []


def test_a_store_that_never_answers_costs_the_deadline_and_no_more() -> None:
    client = Client(store=shared_store())
    assert client.head.seeker is not None
    client.head.seeker._lookup = SilentLookup()
    client.head.seeker._settings = StoreSettings(prefetch_threshold=1, deadline=0.05)
    usage = client.ask("a", prompt(1, 30)).usage
    assert usage and usage.misses == {"deadline": 28, "page tail": 2}


class SilentLookup:
    def ask(self, keys: list[bytes], first: object, answer: Callable[..., None]) -> None:
        pass


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_faulty_store_changes_no_token(data: st.DataObject) -> None:
    rates = FaultRates(error=0.05, short=0.1, fail=0.1, lose=0.1, flip=0.2)
    store = shared_store(capacity=data.draw(st.sampled_from([4_000, 1 << 20])), faults=rates)
    clients = [Client(device=16, host=data.draw(st.sampled_from([8, 32])), store=store) for _ in range(2)]
    for turn in range(data.draw(st.integers(2, 8))):
        client = data.draw(st.sampled_from(clients))
        tokens = prompt(data.draw(st.integers(0, 2)), data.draw(st.integers(1, 40)))
        usage = client.ask(str(turn), tokens).usage
        assert usage and usage.device + usage.host + usage.store + usage.computed == len(tokens)
        assert sum(usage.misses.values()) == usage.computed
        assert idle(client) == []


def test_what_comes_from_the_store_finds_room_in_a_host_tier_that_mirrors_the_device() -> None:
    """Six growing conversations in turn, over pools that hold two of them: all that was said comes back."""
    client = Client(device=36, host=36, token_budget=512, max_running=8, store=shared_store())
    histories: list[list[int]] = [[] for _ in range(6)]
    for turn in range(4):
        for number, history in enumerate(histories):
            tokens = history + prompt(10 * turn + number, 20)
            usage = client.ask(f"{turn}.{number}", tokens).usage
            assert usage and usage.computed == len(tokens) - (len(history) - 1) // 4 * 4 if turn else 20
            histories[number] = tokens + client.output(f"{turn}.{number}")
    assert idle(client) == []
