"""Which requests become a task on the dashboard, what they are called there, and when the task ends."""

import asyncio
import re
import threading
from random import Random

import pytest
from endpoint_fakes import Client, generate
from page_head import CARD, DEADLINE, PageHead

from stratakv.actors.gateway.backend import ClusterBackend
from stratakv.actors.gateway.choice import LeastInFlight
from stratakv.actors.gateway.track import Tracking, task_name
from stratakv.actors.worker.endpoint import Emission
from stratakv.actors.worker.live import LiveRequests
from stratakv.cluster.curve import new_key_pair
from stratakv.cluster.messages import Abort, Delta, Endpoint, FinishReason, Step, Usage
from stratakv.cluster.settings import HeartbeatSettings, WireSettings
from stratakv.cluster.tally import PROMPT_TOKENS, ROUTES

LONG = 600.0


def usage(device=0, host=0, store=0, prompt=100):
    return Usage(
        prompt=prompt, device=device, host=host, store=store, computed=prompt - device - host - store
    )


@pytest.mark.parametrize(
    ("account", "name"),
    [
        (usage(), "generate [no hit]"),
        (usage(device=1), "generate [device hit 0-25%]"),
        (usage(host=24), "generate [host hit 0-25%]"),
        (usage(host=25), "generate [host hit 25-50%]"),
        (usage(store=50), "generate [store hit 50-75%]"),
        (usage(device=75), "generate [device hit 75-99%]"),
        (usage(device=99), "generate [device hit 75-99%]"),
        (usage(device=10, host=30, store=20), "generate [host hit 50-75%]"),
        (usage(device=20, store=20), "generate [device hit 25-50%]"),
        (usage(device=100), "generate [device hit 75-99%]"),
        (usage(prompt=0), "generate [no hit]"),
    ],
)
def test_the_name_says_the_hit(account: Usage, name: str):
    assert task_name(account) == name


def test_all_names_there_are_are_few():
    shares = range(0, 101, 5)
    names = {
        task_name(usage(device, host, store))
        for device in shares
        for host in shares
        for store in shares
        if device + host + store < 100
    }
    assert len(names) == 13
    assert all(
        re.fullmatch(r"generate \[(no hit|(device|host|store) hit \d+-\d+%)\]", name) for name in names
    )


class Calls:
    def __init__(self):
        self.sent: list[tuple[int, str, str]] = []

    def track(self, endpoint: Endpoint, id: str, name: str) -> None:
        self.sent.append((endpoint.replica, id, name))


def head(replica: int) -> Endpoint:
    return Endpoint(replica=replica, generation=1, address="", public_key="", card=CARD)


@pytest.mark.parametrize(("sample", "least", "most"), [(0.0, 0, 0), (0.5, 400, 600), (1.0, 1000, 1000)])
def test_a_share_is_tracked(sample: float, least: int, most: int):
    calls = Calls()
    tracking = Tracking(calls, sample, 64, Random(1))
    for number in range(1000):
        tracking.begin(head(0), str(number), usage())
        tracking.end(head(0), str(number))
    assert least <= len(calls.sent) <= most


def test_above_the_limit_of_a_replica_none_is_sent():
    calls = Calls()
    tracking = Tracking(calls, 1.0, 2, Random())
    for replica in (0, 1):
        for id in ("a", "b", "c"):
            tracking.begin(head(replica), id, usage(host=80))
    sent = [(replica, id) for replica, id, _ in calls.sent]
    assert sent == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    tracking.end(head(0), "c")  # was never begun: makes no room
    tracking.begin(head(0), "d", usage())
    tracking.end(head(0), "a")
    tracking.begin(head(0), "e", usage())
    assert calls.sent[4:] == [(0, "e", "generate [no hit]")]


def waiting(wait, *arguments) -> threading.Thread:
    thread = threading.Thread(target=wait, args=arguments, daemon=True)
    thread.start()
    return thread


def test_who_waits_for_a_request_is_woken_by_its_end_and_by_no_other():
    live = LiveRequests()
    for id in ("a", "b"):
        live.add(id)
    one, other = waiting(live.wait, "a", LONG), waiting(live.wait, "b", LONG)
    live.end(["a", "unknown"])
    one.join(DEADLINE)
    assert not one.is_alive() and other.is_alive()
    live.end(["b"])
    other.join(DEADLINE)
    assert not other.is_alive()
    assert not len(live) and "a" not in live


def test_nobody_waits_for_what_is_not_live_or_longer_than_the_deadline():
    live = LiveRequests()
    live.wait("never", LONG)
    live.add("a")
    live.end(["a"])
    live.wait("a", LONG)
    live.add("b")
    live.wait("b", 0.01)
    assert list(live) == ["b"]


@pytest.mark.parametrize("end", ["finish", "abort", "close"])
def test_a_wait_at_the_head_ends_with_the_request(serve, inbox, end: str):
    endpoint = serve()
    client: Client = serve.client(endpoint)
    client.send(generate("a"))
    id = inbox.next_request()[0]
    waiter = waiting(endpoint.wait_for, "a", LONG)
    endpoint.deliver(1, [Emission(id, Delta(id="a", tokens=(1,)))])
    client.receive(Step)
    assert waiter.is_alive()
    match end:
        case "finish":
            endpoint.deliver(2, [Emission(id, Delta(id="a", finish=FinishReason.STOP))])
        case "abort":
            client.send(Abort("a"))
        case "close":
            endpoint.close()
    waiter.join(DEADLINE)
    assert not waiter.is_alive()
    endpoint.wait_for("a", LONG)


class Seen:
    """A tracker that notes what it hears."""

    def __init__(self):
        self.heard: list[tuple[str, int, str]] = []

    def begin(self, endpoint: Endpoint, id: str, usage: Usage) -> None:
        self.heard.append(("begin", endpoint.replica, f"{id}: {task_name(usage)}"))

    def end(self, endpoint: Endpoint, id: str) -> None:
        self.heard.append(("end", endpoint.replica, id))


def test_the_backend_tells_the_tracker_and_counts_by_replica():
    async def main():
        keys = new_key_pair()
        replica = PageHead(1, keys.public)
        tracker = Seen()
        backend = ClusterBackend(
            keys,
            WireSettings(),
            HeartbeatSettings(interval=0.05, timeout=300),
            replicas=2,
            router=LeastInFlight(),
            tracker=tracker,
        )
        try:
            await backend.set_endpoints([replica.endpoint])
            async with asyncio.timeout(DEADLINE):
                deltas = [delta async for delta in backend.generate(generate("a", range(64)))]
            assert deltas[-1].finish is not None
        finally:
            await backend.close()
            replica.close()
        assert tracker.heard == [("begin", 1, "a: generate [device hit 25-50%]"), ("end", 1, "a")]
        counted = {(series.family, series.values): value for series, value in backend.tally}
        assert counted[PROMPT_TOKENS, ("1", "device")] == 16
        assert counted[PROMPT_TOKENS, ("1", "computed")] == 48
        assert counted[ROUTES, ("1", "no router")] == 1

    asyncio.run(main())
