"""Where pages are, asked over the real wire and answered by an engine's thread and a store's."""

import asyncio
import threading
from contextlib import closing

import pytest
from endpoint_fakes import Client, Inbox, open_endpoint
from hypothesis import given
from hypothesis import strategies as st
from link_fakes import GATEWAY, PATIENT, Head, run, until

from stratakv.actors.gateway.backend import ClusterBackend, LeastInFlight
from stratakv.actors.worker.explainer import Explainer
from stratakv.actors.worker.inbox import holds_nothing
from stratakv.api.backend import BackendUnavailable
from stratakv.cluster import tally
from stratakv.cluster.events import pack_keys
from stratakv.cluster.explain import Explain, ExplainAnswer, Explained, Stretch
from stratakv.cluster.messages import Beat, HierarchyCounts
from stratakv.cluster.settings import WireSettings
from stratakv.storage.columns import ROOT
from stratakv.storage.hierarchy import Hierarchy
from stratakv.storage.moves import PREFETCH_SLOTS
from stratakv.storage.policies.eviction import EVICTION_POLICIES
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.pools import SlotPool
from stratakv.storage.tiers import Component, Miss, Tier
from stratakv.storage.tree import Tree

KEYS = [bytes([n]) * 32 for n in range(10)]


def in_a_thread(job):
    threading.Thread(target=job).start()


# -- what an engine answers


class Store:
    def __init__(self, pages):
        self.pages = pages
        self.asked = []

    def ask(self, keys, first, answer):
        self.asked.append(dict(first))
        there = [n < self.pages for n in range(len(keys))]
        in_a_thread(lambda: answer({Component.FULL: there}))


class Unmoved:
    """An executor that is never asked to do anything here."""

    def submit(self, order):
        raise AssertionError(f"explain ordered {order} of {PREFETCH_SLOTS}")


def a_hierarchy(device, held, reasons=()):
    """One that has the first pages of KEYS, and remembers why the others left."""
    tree = Tree(EVICTION_POLICIES.get("lru")(), has_host=True)
    pools = SlotPool("device", 40), SlotPool("host", 40)
    hierarchy = Hierarchy(tree, *pools, WRITE_POLICIES.get("write_through")(), Unmoved())
    page = ROOT
    for number, key in enumerate(KEYS[:held]):
        page = tree.insert(page, key, Tier.DEVICE if number < device else Tier.HOST, number)
    for key, reason in zip(KEYS[held:], reasons, strict=False):
        hierarchy.room.departures.note(key, reason)
    return hierarchy


def answer_of(hierarchy, store, minimum=1, keys=KEYS):
    explainer = Explainer(in_a_thread, hierarchy, store, minimum)
    answered, answers = threading.Event(), []
    explainer(keys, lambda answer: (answers.append(answer), answered.set()))
    assert answered.wait(60)
    return answers[0]


def test_what_is_not_held_is_asked_of_the_store():
    store = Store(7)
    answer = answer_of(a_hierarchy(2, 4, [Miss.EVICTED] * 4), store)
    assert store.asked == [{Component.FULL: 4}]
    misses = (Stretch(1, "evicted"), Stretch(2, "never seen"))
    assert answer == ExplainAnswer(device=2, host=2, store=3, misses=misses)


def test_a_store_with_too_little_to_be_worth_the_way():
    answer = answer_of(a_hierarchy(0, 4, [Miss.EVICTED] * 6), Store(7), minimum=4)
    assert answer == ExplainAnswer(host=4, misses=(Stretch(3, "below threshold"), Stretch(3, "evicted")))


def test_without_a_store_and_with_nothing_left_to_ask_nobody_is():
    assert answer_of(a_hierarchy(0, 8, [Miss.NO_HOST_ROOM] * 2), None) == ExplainAnswer(
        host=8, misses=(Stretch(2, "no host room"),)
    )
    store = Store(0)
    assert answer_of(a_hierarchy(10, 10), store) == ExplainAnswer(device=10) and store.asked == []


@given(st.data())
def test_an_answer_is_about_every_page(data):
    device, held, stored = sorted(data.draw(st.integers(0, 10)) for _ in range(3))
    reasons = data.draw(st.lists(st.sampled_from(Miss), min_size=10 - held, max_size=10 - held))
    answer = answer_of(a_hierarchy(device, held, reasons), Store(stored), data.draw(st.integers(1, 5)))
    assert answer.device == device and answer.host == held - device and answer.store in (0, stored - held)
    assert answer.device + answer.host + answer.store + sum(run.pages for run in answer.misses) == 10


def test_a_hierarchy_is_looked_at_and_not_changed():
    hierarchy = a_hierarchy(1, 2, [Miss.EVICTED])
    columns = hierarchy.tree.columns
    use = list(columns.last_use), list(columns.hits)
    answer = answer_of(hierarchy, Store(4), keys=KEYS[:4])
    assert answer == ExplainAnswer(device=1, host=1, store=2)
    assert (list(columns.last_use), list(columns.hits)) == use


# -- over the wire


def test_a_head_answers_who_asked_and_under_his_id():
    asked = []

    def explain(keys, answer):
        asked.append(keys)
        in_a_thread(lambda: answer(ExplainAnswer(device=len(keys))))

    endpoint = open_endpoint(Inbox(), explain=explain)
    endpoint.start()
    with closing(endpoint), closing(Client(endpoint)) as one, closing(Client(endpoint)) as other:
        one.send(Explain("x", pack_keys(KEYS[:3])))
        assert one.receive(Explained) == Explained(7, "x", ExplainAnswer(device=3))
        other.send(Explain("x", b""))
        assert other.receive(Explained).answer == ExplainAnswer()
        other.send(Explain("y", bytes(33)))  # no whole keys: logged, and the head lives on
        other.send(Explain("z", pack_keys(KEYS)))
        assert other.receive(Explained).id == "z"
    assert asked == [KEYS[:3], [], KEYS]


def test_a_head_without_pages_says_so():
    endpoint = open_endpoint(Inbox())
    endpoint.start()
    with closing(endpoint), closing(Client(endpoint)) as client:
        client.send(Explain("x", pack_keys(KEYS)))
        assert client.receive(Explained).answer == ExplainAnswer(misses=(Stretch(10, "never seen"),))
    answers = []
    holds_nothing([], answers.append)
    assert answers == [ExplainAnswer()]


def test_beats_tell_what_the_hierarchy_did():
    counts = HierarchyCounts(loaded=4, lost={"evicted": 2}, write_backlog=1)
    endpoint = open_endpoint(Inbox(), counts=lambda: counts)
    endpoint.start()
    with closing(endpoint), closing(Client(endpoint)) as client:
        client.send(Explain("x", b""))
        assert client.receive(Beat).counts == counts


# -- over all replicas


def backend_of(replicas=2):
    return ClusterBackend(GATEWAY, WireSettings(), PATIENT, replicas=replicas, router=LeastInFlight())


def test_all_replicas_are_asked_and_one_that_says_nothing_is_named():
    def silent(keys, answer):
        pass

    async def main():
        with Head(0) as one, Head(1, explain=silent) as other:
            backend = backend_of()
            await backend.set_endpoints([other.endpoint, one.endpoint])
            try:
                await until(lambda: backend.status().replicas_ready == 2)
                first, second = await backend.explain(KEYS, deadline=0.5)
                assert first.replica == 0 and first.answer.misses == (Stretch(10, "never seen"),)
                assert (second.replica, second.answer) == (1, None)
                assert "api.explain_timeout" in second.trouble
                backend.refresh()
                shown = {series.family for series, _ in backend.tally}
                assert {tally.MOVED_PAGES, tally.WRITE_BACKLOG} <= shown
            finally:
                await backend.close()

    run(main)


def test_a_replica_that_is_lost_while_it_is_asked_is_named():
    asked = threading.Event()

    async def main():
        with Head(0, explain=lambda keys, answer: asked.set()) as head:
            backend = backend_of(replicas=1)
            await backend.set_endpoints([head.endpoint])
            try:
                await until(lambda: backend.status().replicas_ready == 1)
                asking = asyncio.create_task(backend.explain(KEYS, deadline=60))
                await until(asked.is_set)
                head.server.close()
                [view] = await asking
                assert view.answer is None and "replica 0 is not available" in view.trouble
            finally:
                await backend.close()

    run(main)


def test_without_a_replica_there_is_nobody_to_ask():
    async def main():
        backend = backend_of()
        with pytest.raises(BackendUnavailable, match="no replica"):
            await backend.explain(KEYS, deadline=1)
        await backend.close()

    run(main)
