"""The router over real endpoints: it follows the heads' pages, whatever gets lost."""

import asyncio
from contextlib import asynccontextmanager
from random import Random

import msgspec
import pytest
from page_head import DEADLINE, PageHead

from stratakv.actors.router.config import RouterConfig
from stratakv.actors.router.router import Router
from stratakv.actors.router.status import RouteTotal
from stratakv.cluster.curve import new_key_pair
from stratakv.cluster.events import Watch, pack_keys
from stratakv.cluster.messages import Usage, encode
from stratakv.cluster.routing.route import Actual, Reason, Route, RouteQuery
from stratakv.cluster.settings import HeartbeatSettings, RouterSettings, WireSettings

GATEWAY = new_key_pair()
CHAIN = [n.to_bytes(32, "big") for n in range(1000)]


@pytest.fixture
def heads():
    """Makes heads, and closes them."""
    made = []

    def make(replica=0, **kwargs):
        made.append(PageHead(replica, GATEWAY.public, **kwargs))
        return made[-1]

    yield make
    for head in made:
        head.close()


@asynccontextmanager
async def routing(*heads, timeout=300.0, policy="deepest_hit"):
    config = RouterConfig(
        namespace="test",
        settings=RouterSettings(policy=policy),
        wire=WireSettings(),
        heartbeat=HeartbeatSettings(interval=0.05, timeout=timeout),
        keys=GATEWAY,
        replicas=2,
    )
    router = Router(config, Random(1), clock=lambda: 1000.0)
    await router.set_endpoints([head.endpoint for head in heads])
    try:
        yield router
    finally:
        await router.close()


def run(main):
    """Run `main` under a deadline, and see that it leaves no task behind."""

    async def bounded():
        async with asyncio.timeout(DEADLINE):
            await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def pages(router, replica=0):
    """What the router has of a replica: None while it is not exact."""
    for known in router.status().replicas:
        if known.replica == replica:
            return (known.device_pages, known.host_pages) if known.exact else None
    return None


def query(pages=10, live=(0, 1)):
    return RouteQuery(keys=pack_keys(CHAIN[:pages]), tokens=pages * 16 + 1, page_size=16, live=live)


def test_routes_follow_the_pages(heads):
    async def main():
        one, other = heads(0), heads(1)
        one.change(device=CHAIN[:3])
        async with routing(one, other) as router:
            await until(lambda: pages(router, 0) == (3, 0) and pages(router, 1) == (0, 0))
            route = router.route(query())
            assert (route.replica, route.device_tokens, route.reason) == (0, 48, Reason.DEEPEST_HIT)
            other.change(device=CHAIN[:4], held=CHAIN[4:9])
            await until(lambda: pages(router, 1) == (4, 5))
            route = router.route(query())
            assert (route.replica, route.device_tokens, route.host_tokens) == (1, 64, 80)
            other.change(gone=CHAIN[2:9])
            await until(lambda: pages(router, 1) == (2, 0))
            assert router.route(query()).replica == 0
            assert router.status().routes == [
                RouteTotal(replica=0, reason=Reason.DEEPEST_HIT, routes=2),
                RouteTotal(replica=1, reason=Reason.DEEPEST_HIT, routes=1),
            ]
            assert one.watches == other.watches == 1  # all of it by events

    run(main)


def test_a_new_router_is_exact_again_by_snapshots(heads):
    async def main():
        head = heads()
        for life in range(3):
            head.change(device=CHAIN[: 100 * (life + 1)])
            async with routing(head) as router:
                await until(lambda: pages(router) == (100 * (life + 1), 0))  # noqa: B023

    run(main)


def test_a_lost_batch_is_healed_by_a_snapshot(heads):
    async def main():
        head = heads()
        async with routing(head) as router:
            await until(lambda: pages(router) == (0, 0))
            send, lost = head.server._router.send_multipart, []

            def lose(frames, flags):
                if b"events" in frames[1] and not lost:
                    lost.append(frames)
                else:
                    send(frames, flags)

            head.server._router.send_multipart = lose
            for n in range(1, 20):
                head.change(device=CHAIN[:n])
            await until(lambda: pages(router) == (19, 0))
            assert lost and head.watches == 2

    run(main)


def test_a_lost_last_batch_shows_in_the_next_beat(heads):
    async def main():
        head = heads()
        async with routing(head) as router:
            await until(lambda: pages(router) == (0, 0))
            send = head.server._router.send_multipart
            head.server._router.send_multipart = lambda frames, flags: (
                None if b"events" in frames[1] else send(frames, flags)
            )
            head.change(device=CHAIN[:5])
            await until(lambda: pages(router) == (5, 0))
            assert head.watches == 2

    run(main)


def test_a_watch_without_an_answer_is_sent_again(heads):
    async def main():
        head = heads()
        head.answering = False
        async with routing(head, timeout=0.3) as router:
            await until(lambda: head.watches == 1)
            head.answering = True
            head.server._watchers.drop(
                next(iter(head.server._clients))
            )  # as when the connection was lost meanwhile
            await until(lambda: pages(router) == (0, 0))
            assert head.watches >= 2

    run(main)


def test_garbage_from_a_head_is_dropped_and_healed(heads):
    async def main():
        head = heads()
        async with routing(head) as router:
            await until(lambda: pages(router) == (0, 0))
            send = head.server._router.send_multipart
            truncated = msgspec.msgpack.encode(
                {"type": "events", "generation": 1, "sequence": 1, "held_added": b"x"}
            )
            garbled = iter([b"\xff", truncated, encode(Watch())])
            head.server._router.send_multipart = lambda frames, flags: send(
                [frames[0], next(garbled, frames[1])], flags
            )
            head.change(device=CHAIN[:5])
            await until(lambda: next(garbled, None) is None and pages(router) == (5, 0))

    run(main)


def test_a_death_is_listed_and_its_pages_are_forgotten(heads):
    async def main():
        one, other = heads(0), heads(1)
        one.change(device=CHAIN[:9])
        other.change(device=CHAIN[:2])
        async with routing(one, other) as router:
            await until(lambda: pages(router, 0) == (9, 0) and pages(router, 1) == (2, 0))
            await router.set_endpoints([other.endpoint])
            (death,) = router.deaths()
            assert (death.replica, death.generation, death.at) == (0, 1, 1000.0)
            assert router.status().pages == 2 and router.route(query()).replica == 1

            successor = heads(0, generation=2)
            await router.set_endpoints([other.endpoint, successor.endpoint])
            await until(lambda: pages(router, 0) == (0, 0))
            assert router.route(query()).replica == 1
            successor.change(device=CHAIN[:10])
            await until(lambda: pages(router, 0) == (10, 0))
            assert router.route(query()).replica == 0
            assert len(router.deaths()) == 1

    run(main)


def test_a_next_generation_takes_over_at_once_and_an_older_one_does_not(heads):
    async def main():
        old, new = heads(generation=1), heads(generation=2)
        old.change(device=CHAIN[:9])
        new.change(device=CHAIN[:4])
        async with routing(old) as router:
            await until(lambda: pages(router) == (9, 0))
            await router.set_endpoints([new.endpoint])
            await until(lambda: pages(router) == (4, 0))
            await router.set_endpoints([old.endpoint])
            assert pages(router) == (4, 0) and len(router.deaths()) == 1
            old.change(device=CHAIN[:20])
            new.change(device=CHAIN[:5])
            await until(lambda: pages(router) == (5, 0))

    run(main)


def test_load_comes_with_the_beats(heads):
    async def main():
        one, other = heads(0), heads(1)
        one.load = one.load._replace(running=3, waiting=2)
        async with routing(one, other, policy="least_loaded") as router:
            await until(lambda: [known.load for known in router.status().replicas] == [5, 0])
            assert router.route(query()).replica == 1

    run(main)


def test_a_head_that_cannot_be_reached_leaves_the_others_exact(heads):
    async def main():
        one = heads(0)
        gone = heads(1)
        gone.close()
        one.change(device=CHAIN[:3])
        async with routing(one, gone) as router:
            await until(lambda: pages(router, 0) == (3, 0))
            assert pages(router, 1) is None and router.route(query()).replica == 0
            router.check()

    run(main)


def test_a_feed_that_fails_is_no_secret(heads):
    async def main():
        async with routing(heads()) as router:
            await until(lambda: pages(router) == (0, 0))
            router._book.heard = None
            with pytest.raises(TypeError):
                while True:
                    router.check()
                    await asyncio.sleep(0.01)

    run(main)


def test_what_travels_through_ray_is_plain_data(heads):
    async def main():
        async with routing(heads()) as router:
            route = router.route(query())
            router.report([Actual(route.receipt, Usage(prompt=161, computed=161))])
            status = router.status()
            assert status.latest[0].route == route and status.latest[0].actual.computed == 161
            for message in (route, query(), status):
                assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message
            assert isinstance(route, Route)

    run(main)
