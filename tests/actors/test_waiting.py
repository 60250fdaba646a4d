"""How long a request waits for the store under each prefetch policy, and what becomes of what has landed by then."""

import threading
import time

import pytest
from engine_fakes import Client, expected_output
from shared_store import shared_store

from stratakv.actors.settings import SchedulerSettings
from stratakv.storage.hierarchy_check import idle_problems
from stratakv.storage.tiers import Miss

BATCH = 16
"""Pages that a rank reads between two looks at whether it was cut."""
HISTORY = [(7 * n + 3) % 101 for n in range(4 * BATCH * 4 + 1)]
"""Four batches of pages of four tokens, and one token more."""


class Waiting:
    """A replica whose store has the history and delivers a batch when it is let; its clock stands still."""

    def __init__(self, policy: str):
        store = shared_store()
        Client(store=store, host=200, device=200).ask("there", HISTORY)
        self.client = Client(store=store, host=200, device=200, prefetch_policy=policy)
        self.now = 0.0
        self.batches = threading.Semaphore(0)
        self.reads = 0
        seeker, transfers = self.client.head.seeker, self.client.engine._rank._transfers
        assert seeker is not None and transfers is not None
        self.seeker = seeker
        seeker._clock = lambda: self.now
        get = transfers._store.get

        def gated(*arguments):
            self.reads += 1
            assert self.batches.acquire(timeout=60)
            return get(*arguments)

        transfers._store.get = gated
        self.client.send("back", HISTORY)

    def step(self, until) -> None:
        """Steps of the engine until the condition holds."""
        deadline = time.monotonic() + 60
        while not until():
            assert time.monotonic() < deadline
            plan = self.client.head.plan()
            if plan is not None:
                result = self.client.engine._rank.execute(plan)
                self.client.deliver(plan.number, self.client.head.absorb(result))
            self.client.engine._take_inbox()
            time.sleep(0.001)

    def land(self, batches: int) -> None:
        """Let the store deliver, and have it agreed."""
        before = self.landed()
        for _ in range(batches):
            self.batches.release()
        self.step(lambda: self.landed() == before + batches * BATCH)

    def landed(self) -> int:
        return sum(prefetch.landed for prefetch in self.client.head.hierarchy.prefetches.active)

    def cut(self) -> None:
        """The policy has had enough: steps until the request is let go, with the read that is under way let through."""
        self.batches.release()
        self.step(lambda: len(self.seeker) == 0)

    def finish(self, batches: int = 0):
        """To the end of the request, with `batches` more let through."""
        for _ in range(batches):
            self.batches.release()
        self.client.work()
        assert self.client.output("back") == expected_output(HISTORY, 4)
        assert idle_problems(self.client.head.hierarchy) == []
        return self.client.told["back"][-1].usage


def begun(policy: str) -> Waiting:
    waiting = Waiting(policy)
    waiting.step(lambda: waiting.reads > 0)
    return waiting


def test_best_effort_takes_what_has_landed_and_waits_for_no_more() -> None:
    waiting = begun("best_effort")
    waiting.cut()
    usage = waiting.finish()
    assert (usage.store, usage.misses[str(Miss.CUT)]) == (BATCH * 4, 3 * BATCH * 4)
    assert waiting.reads == 1, "a new read was issued after the cut"


def test_a_read_that_hangs_after_the_cut_is_not_waited_for_and_what_it_brings_stays_usable() -> None:
    waiting = begun("best_effort")
    waiting.step(lambda: any(prefetch.cut for prefetch in waiting.client.head.hierarchy.prefetches.active))
    assert len(waiting.seeker) == 1
    waiting.now = 3.1
    waiting.step(lambda: "back" in waiting.client.told)
    usage = waiting.finish(batches=1)
    assert (usage.store, usage.misses[str(Miss.CUT)]) == (0, 4 * BATCH * 4)
    assert waiting.reads == 1 and waiting.client.head.hierarchy.prefetches.pages_landed == BATCH


def test_wait_complete_waits_however_long_it_takes() -> None:
    waiting = begun("wait_complete")
    waiting.land(2)
    waiting.now = 29.0
    waiting.land(1)
    usage = waiting.finish(batches=1)
    assert usage.store == 4 * BATCH * 4 and usage.computed == 1


def test_a_deadline_bounds_every_policy() -> None:
    waiting = begun("wait_complete")
    waiting.land(1)
    waiting.now = 31.0
    waiting.cut()
    usage = waiting.finish()
    assert (usage.store, usage.misses[str(Miss.DEADLINE)]) == (2 * BATCH * 4, 2 * BATCH * 4)


def test_a_timeout_counts_from_when_the_request_was_first_held_up() -> None:
    """1.0 s and 0.25 s per 1,024 tokens: 1.0625 s for 256."""
    waiting = begun("timeout")
    waiting.land(1)
    waiting.now = 1.06
    waiting.land(1)
    assert len(waiting.seeker) == 1
    waiting.now = 1.07
    waiting.cut()
    usage = waiting.finish()
    assert (usage.store, usage.misses[str(Miss.CUT)]) == (3 * BATCH * 4, BATCH * 4)
    assert waiting.reads == 3, "the read that was under way is the last"


@pytest.mark.parametrize(("per_token", "cut"), [(0.001, True), (0.1, False)])
def test_break_even_cuts_when_the_rest_is_quicker_computed(per_token: float, cut: bool) -> None:
    """A batch of 64 tokens in two seconds leaves 192 tokens and six seconds of waiting, or of computing."""
    waiting = begun("break_even")
    for depth in (64, 128, 192):
        waiting.seeker.prefill.note(depth, 64, 64 * per_token)
    waiting.now = 2.0
    waiting.land(1)
    if cut:
        waiting.cut()
        usage = waiting.finish()
        assert (usage.store, usage.misses[str(Miss.CUT)]) == (2 * BATCH * 4, 2 * BATCH * 4)
    else:
        usage = waiting.finish(batches=3)
        assert usage.store == 4 * BATCH * 4


def test_requests_that_wait_at_the_same_time_take_no_memory_from_each_other() -> None:
    """Eight histories of ten pages at once, one runs at a time, and the host can fetch two or three: all come back."""
    store = shared_store()
    histories = {str(n): [(n + 5 * i) % 101 for i in range(41)] for n in range(8)}
    there = Client(store=store, host=200, device=200)
    for id, tokens in histories.items():
        there.ask(id, tokens)
    here = Client(store=store, host=52, device=20, max_running=1, token_budget=64)
    for id, tokens in histories.items():
        here.send(id, tokens)
    here.work()
    for id, tokens in histories.items():
        assert here.output(id) == expected_output(tokens, 4)
        usage = here.told[id][-1].usage
        assert usage and (usage.store, usage.computed) == (40, 1)
    assert idle_problems(here.head.hierarchy) == []


@pytest.mark.parametrize(("host", "device"), [(56, 20), (64, 24)])
def test_what_leaves_while_its_request_waits_is_fetched_again(host: int, device: int) -> None:
    """Three histories are in host memory when their requests queue behind others that push them out: before the turn of
    one, or of the larger sizes also between the question to the store and its answer."""
    client = Client(store=shared_store(), host=host, device=device, max_running=1, token_budget=64)
    old = {f"old {n}": [(n + 5 * i) % 101 for i in range(41)] for n in range(3)}
    new = {f"new {n}": [(n + 7 * i) % 101 for i in range(41)] for n in range(4)}
    for id, tokens in old.items():
        client.ask(f"{id} first", tokens)
    for id, tokens in (new | old).items():
        client.send(id, tokens)
    client.work()
    usages = [client.told[id][-1].usage for id in old]
    assert [usage and usage.computed for usage in usages] == [1, 1, 1]
    assert sum(usage.store for usage in usages if usage) > 0
    assert idle_problems(client.head.hierarchy) == []


def test_a_history_larger_than_what_may_be_fetched_at_once_comes_in_parts() -> None:
    store = shared_store()
    Client(store=store, host=200, device=200).ask("there", HISTORY)
    here = Client(store=store, host=80, device=100)
    usage = here.ask("back", HISTORY).usage
    assert usage and usage.store == len(HISTORY) - 1
    assert idle_problems(here.head.hierarchy) == []


def test_an_aborted_request_keeps_nothing() -> None:
    waiting = begun("wait_complete")
    waiting.client.head.scheduler._settings = SchedulerSettings(max_running=1)
    waiting.client.send("first", [1, 2, 3], max_tokens=500)
    waiting.step(lambda: len(waiting.client.head.scheduler.running) == 1)
    for _ in range(4):
        waiting.batches.release()
    prefetches = waiting.client.head.hierarchy.prefetches
    waiting.step(lambda: prefetches.kept)
    for request in [*waiting.client.head.scheduler.running, *waiting.client.head.scheduler.waiting]:
        waiting.client.head.remove(request.id)
    assert prefetches.kept == []
    waiting.client.work()
    assert idle_problems(waiting.client.head.hierarchy) == []


def test_break_even_waits_while_nothing_is_known() -> None:
    waiting = begun("break_even")
    waiting.now = 20.0
    usage = waiting.finish(batches=4)
    assert usage.store == 4 * BATCH * 4
