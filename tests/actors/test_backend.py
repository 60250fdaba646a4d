import asyncio
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio
from link_fakes import (
    CARD,
    FOR_EVER,
    GATEWAY,
    PATIENT,
    Head,
    generate,
    run,
    tokens_of,
    until,
)

from stratakv.actors.gateway.backend import ClusterBackend, LeastInFlight
from stratakv.api.backend import BackendUnavailable
from stratakv.cluster.curve import new_key_pair
from stratakv.cluster.messages import KeyPair
from stratakv.cluster.settings import WireSettings

# -- the backend over several heads


@asynccontextmanager
async def backend_of(*heads, replicas=2, heartbeat=PATIENT):
    backend = ClusterBackend(GATEWAY, WireSettings(), heartbeat, replicas=replicas, router=LeastInFlight())
    await backend.set_endpoints([head.endpoint for head in heads])
    try:
        yield backend
    finally:
        await backend.close()


def test_without_a_replica_the_backend_is_unavailable():
    async def main():
        async with backend_of() as backend:
            assert backend.card() is None
            assert backend.status().replicas_ready == 0 and backend.status().replicas_total == 2
            with pytest.raises(BackendUnavailable, match="no replica is ready yet") as error:
                await anext(backend.generate(generate()))
            assert error.value.retry_after >= 1

    run(main)


def test_requests_go_to_the_head_with_the_fewest():
    async def main():
        with Head(0) as one, Head(1) as other:
            async with backend_of(one, other) as backend:
                await until(lambda: backend.status().replicas_ready == 2)
                assert backend.card() == CARD
                streams = [backend.generate(generate(str(n), max_tokens=FOR_EVER)) for n in range(4)]
                for stream in streams:
                    await anext(stream)
                assert len(one.engine.live) == len(other.engine.live) == 2
                await until(lambda: backend.status().running == 4)
                for stream in streams:
                    await stream.aclose()
                await one.engine.until(lambda: not one.engine.live)
                await other.engine.until(lambda: not other.engine.live)

    run(main)


def test_a_first_request_waits_for_first_contact():
    async def main():
        with Head() as head:
            async with backend_of(head) as backend:
                assert backend.status().replicas_ready == 0
                assert await tokens_of(backend.generate(generate())) == list(range(1, 9))

    run(main)


def test_a_next_generation_takes_over_and_an_older_one_does_not():
    async def main():
        with Head(generation=1) as old, Head(generation=2) as new:
            async with backend_of(old) as backend:
                stream = backend.generate(generate("old", max_tokens=FOR_EVER))
                await anext(stream)
                await backend.set_endpoints([new.endpoint])
                with pytest.raises(BackendUnavailable):
                    await tokens_of(stream)
                await backend.set_endpoints([old.endpoint])
                assert await tokens_of(backend.generate(generate("new"))) == list(range(1, 9))
                await old.engine.until(lambda: old.engine.aborted == ["old"])

    run(main)


def test_the_same_endpoints_again_disturb_nothing():
    async def main():
        with Head() as head:
            async with backend_of(head) as backend:
                stream = backend.generate(generate(max_tokens=FOR_EVER))
                await anext(stream)
                await backend.set_endpoints([head.endpoint])
                assert (await anext(stream)).tokens
                await stream.aclose()

    run(main)


def test_a_head_that_died_is_passed_over_and_then_named():
    async def main():
        one, other = Head(0), Head(1)
        async with backend_of(one, other) as backend:
            await until(lambda: backend.status().replicas_ready == 2)
            await asyncio.to_thread(one.close)
            await until(lambda: backend.status().replicas_ready == 1)
            for n in range(3):
                assert await tokens_of(backend.generate(generate(str(n)))) == list(range(1, 9))
            await asyncio.to_thread(other.close)
            await until(lambda: backend.status().replicas_ready == 0)
            with pytest.raises(BackendUnavailable, match=r"replica 0: its connection dropped; replica 1"):
                await anext(backend.generate(generate()))
            assert backend.card() == CARD

    run(main)


def test_key_pairs_are_fresh():
    one, other = new_key_pair(), new_key_pair()
    assert isinstance(one, KeyPair) and len(one.public) == len(one.secret) == 40
    assert len({one.public, one.secret, other.public, other.secret}) == 4


def test_a_libzmq_without_curve_is_named(monkeypatch):
    monkeypatch.setattr(zmq, "has", lambda capability: False)
    with pytest.raises(RuntimeError, match="without CURVE"):
        new_key_pair()
