"""The gateway's side: it asks the router, and helps itself while none answers."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import numpy as np
import pytest
from page_head import CARD, DEADLINE, PageHead

from stratakv.actors.gateway import choice as module
from stratakv.actors.gateway.backend import ClusterBackend
from stratakv.actors.gateway.choice import Choice, Decision, LeastInFlight, RemoteRouter
from stratakv.actors.gateway.link import Contact
from stratakv.cluster.curve import new_key_pair
from stratakv.cluster.events import PackedKeys
from stratakv.cluster.messages import Endpoint, Generate, Sampling, Usage
from stratakv.cluster.routing.route import Reason, Route
from stratakv.cluster.settings import HeartbeatSettings, WireSettings
from stratakv.storage.keys import chain, namespace_seed

GATEWAY = new_key_pair()


class Head:
    """As much of a link as a choice looks at."""

    def __init__(self, replica, in_flight=0):
        self.endpoint = Endpoint(replica=replica, generation=1, address="", public_key="", card=CARD)
        self.in_flight = in_flight
        self.contact = Contact.LIVE


class Calls:
    """A router actor that answers as told."""

    def __init__(self, replica=1):
        self.replica = replica
        self.queries, self.told = [], []
        self.error = None
        self.hangs = False
        self.before_answer = lambda: None

    async def route(self, query):
        self.queries.append(query)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error:
            raise self.error
        self.before_answer()
        return Route(
            replica=self.replica, device_tokens=16, host_tokens=0, policy="p",
            reason=Reason.DEEPEST_HIT, receipt=len(self.queries),
        )  # fmt: skip

    async def report(self, actuals):
        if self.error:
            raise self.error
        self.told.append(actuals)


def request(tokens=range(40), id="a", **kwargs):
    data = np.asarray(tokens, dtype="<u4").tobytes()
    return Generate(id=id, tokens=data, sampling=Sampling(max_tokens=4), **kwargs)


@asynccontextmanager
async def asking(calls, deadline=DEADLINE):
    router = RemoteRouter(calls, deadline)
    try:
        yield router
    finally:
        await router.close()


def run(main):
    async def bounded():
        async with asyncio.timeout(DEADLINE):
            await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("count", [40, 40_000])
def test_the_router_is_asked_with_the_keys_that_the_head_will_chain(count):
    async def main():
        calls, live = Calls(), [Head(0), Head(1)]
        async with asking(calls) as router:
            tokens = np.arange(count) % 1000
            choice = await router.route(request(tokens, extra_key="tenant", cache_salt="salt"), live)
            assert choice.head is live[1] and choice.route.device_tokens == 16
            (query,) = calls.queries
            expected = chain(tokens.tolist(), 16, namespace_seed("tenant", "salt"))
            assert list(PackedKeys(query.keys)) == expected
            assert (query.tokens, query.page_size, query.live) == (count, 16, (0, 1))
            assert router.decisions == {Decision.ROUTED: 1}

    run(main)


def test_a_router_that_fails_is_left_alone_for_a_while(monkeypatch):
    async def main():
        calls, live = Calls(), [Head(0, in_flight=2), Head(1, in_flight=1)]
        calls.error = RuntimeError("the actor died")
        async with asking(calls) as router:
            for decision in (Decision.FAILED, Decision.RESTING, Decision.RESTING):
                assert await router.route(request(), live) == Choice(live[1], decision)
            assert router.decisions == {Decision.FAILED: 1, Decision.RESTING: 2}
            calls.error, calls.replica = None, 0
            await until(lambda: asyncio.get_running_loop().time() > router._rests_until)
            assert (await router.route(request(), live)).head is live[0]
            assert router.decisions[Decision.ROUTED] == 1

    monkeypatch.setattr(module, "_REST", 0.2)
    run(main)


def test_a_router_that_hangs_costs_the_deadline_and_no_more():
    async def main():
        calls, live = Calls(), [Head(0), Head(1)]
        calls.hangs = True
        async with asking(calls, deadline=0.05) as router:
            assert await router.route(request(), live) == Choice(live[0], Decision.DEADLINE)
            assert router.decisions == {Decision.DEADLINE: 1}

    run(main)


def test_a_replica_that_is_not_to_be_had_is_not_taken():
    async def main():
        calls, live = Calls(replica=5), [Head(0, in_flight=0), Head(1, in_flight=3)]
        async with asking(calls) as router:
            assert await router.route(request(), live) == Choice(live[0], Decision.NOT_LIVE)
            calls.replica = 0
            calls.before_answer = lambda: setattr(live[0], "contact", Contact.LOST)  # it dies meanwhile
            assert await router.route(request(), live) == Choice(live[1], Decision.NOT_LIVE)
            assert router.decisions == {Decision.NOT_LIVE: 2}

    run(main)


def test_outcomes_are_told_together(monkeypatch):
    async def main():
        calls, live = Calls(), [Head(0), Head(1)]
        async with asking(calls) as router:
            choices = [await router.route(request(), live) for _ in range(3)]
            for choice in [*choices, Choice(live[0], Decision.NO_ROUTER)]:  # the last was not the router's
                router.report(choice, Usage(prompt=40, computed=40))
            await until(lambda: calls.told)
            assert [[actual.receipt for actual in actuals] for actuals in calls.told] == [[1, 2, 3]]
            calls.error = RuntimeError("the actor died")
            router.report(choices[0], Usage(prompt=40))
            await until(lambda: router._telling is None)
            calls.error = None
            router.report(choices[1], Usage(prompt=40))
            await until(lambda: len(calls.told) == 2)
            router.report(choices[2], Usage(prompt=40))  # untold when it closes

    monkeypatch.setattr(module, "_REPORT_EVERY", 0.05)
    run(main)


def test_without_a_router_requests_spread():
    async def main():
        router, live = LeastInFlight(), [Head(0), Head(1)]
        for _ in range(10):
            choice = await router.route(request(), live)
            router.report(choice, Usage(prompt=1))
            choice.head.in_flight += 1
        assert Counter(head.in_flight for head in live) == {5: 2}
        assert router.decisions == {Decision.NO_ROUTER: 10}
        await router.close()

    run(main)


def test_the_backend_sends_requests_where_the_router_says_and_tells_what_came_of_it(monkeypatch):
    async def main():
        heads = [PageHead(replica, GATEWAY.public) for replica in (0, 1)]
        calls = Calls(replica=1)
        patient = HeartbeatSettings(interval=0.05, timeout=300)
        backend = ClusterBackend(
            GATEWAY, WireSettings(), patient, replicas=2, router=RemoteRouter(calls, DEADLINE)
        )
        await backend.set_endpoints([head.endpoint for head in heads])
        await until(lambda: backend.status().replicas_ready == 2)
        for id in ("a", "b"):
            deltas = [delta async for delta in backend.generate(request(id=id))]
            assert deltas[-1].finish is not None
        assert heads[1].submitted == ["a", "b"] and not heads[0].submitted
        await until(lambda: sum(map(len, calls.told)) == 2)
        outcomes = [actual for actuals in calls.told for actual in actuals]
        assert [(actual.receipt, actual.usage.device) for actual in outcomes] == [(1, 16), (2, 16)]
        await backend.close()
        for head in heads:
            head.close()

    monkeypatch.setattr(module, "_REPORT_EVERY", 0.05)
    run(main)
