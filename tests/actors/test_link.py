import asyncio
import json
import socket
import subprocess
import sys
import threading
from contextlib import aclosing

import numpy as np
import pytest
from link_fakes import (
    CARD,
    DEADLINE,
    FOR_EVER,
    GATEWAY,
    Head,
    generate,
    linked,
    run,
    tokens_of,
    until,
)

from stratakv.actors.gateway.link import Contact
from stratakv.api.backend import BackendUnavailable
from stratakv.cluster.curve import new_key_pair
from stratakv.cluster.messages import Endpoint, FinishReason
from stratakv.cluster.settings import HeartbeatSettings, WireSettings


def test_tokens_stream_to_the_end():
    async def main():
        with Head() as head:
            async with linked(head.endpoint) as link:
                deltas = [delta async for delta in link.generate(generate())]
                assert [token for delta in deltas for token in delta.tokens] == list(range(1, 9))
                assert [delta.finish for delta in deltas] == [None] * 7 + [FinishReason.LENGTH]
                assert link.in_flight == 0 and head.engine.aborted == []

    run(main)


def test_a_flood_starves_neither_the_event_loop_nor_the_head():
    async def main():
        with Head() as head:
            head.engine.pace = 0
            async with linked(head.endpoint) as link:
                streams = [link.generate(generate(str(n), max_tokens=FOR_EVER)) for n in range(3)]
                for _ in range(100):
                    for stream in streams:
                        assert (await anext(stream)).tokens
                for stream in streams:
                    await stream.aclose()
                await head.engine.until(lambda: not head.engine.live)
                assert await tokens_of(link.generate(generate("next", max_tokens=2000))) == list(
                    range(1, 2001)
                )

    run(main)


def test_two_hundred_streams_with_one_message_a_step():
    async def main():
        with Head() as head:
            head.engine.paused = True
            sent = []
            send = head.server._router.send_multipart
            async with linked(head.endpoint) as link:
                requests = [generate(str(n), max_tokens=20) for n in range(200)]
                streams = [asyncio.create_task(tokens_of(link.generate(request))) for request in requests]
                await until(lambda: len(head.engine.live) == 200)

                def spy(frames, flags):
                    sent.append(frames)
                    send(frames, flags)

                head.server._router.send_multipart = spy
                with head.engine.condition:
                    head.engine.paused = False
                    head.engine.condition.notify_all()
                assert await asyncio.gather(*streams) == [list(range(1, 21))] * 200
            steps = [frames for frames in sent if b"deltas" in frames[1]]
            assert len(steps) == 20

    run(main)


def test_closing_a_stream_early_aborts_it():
    async def main():
        with Head() as head:
            async with linked(head.endpoint) as link:
                async with aclosing(link.generate(generate(max_tokens=FOR_EVER))) as stream:
                    assert (await anext(stream)).tokens == (1,)
                await head.engine.until(lambda: head.engine.aborted == ["a"])
                assert link.in_flight == 0
                # The id is free again, and nothing of the old answer comes.
                assert await tokens_of(link.generate(generate("b"))) == list(range(1, 9))

    run(main)


def test_cancelling_the_reader_aborts():
    async def main():
        with Head() as head:
            async with linked(head.endpoint) as link:
                task = asyncio.create_task(tokens_of(link.generate(generate(max_tokens=FOR_EVER))))
                await head.engine.until(lambda: head.engine.live)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await head.engine.until(lambda: head.engine.aborted == ["a"])

    run(main)


def test_a_gateway_that_vanishes_frees_its_requests():
    async def main():
        with Head() as head:
            async with linked(head.endpoint) as link:
                task = asyncio.create_task(tokens_of(link.generate(generate(max_tokens=FOR_EVER))))
                await head.engine.until(lambda: head.engine.live)
            with pytest.raises(BackendUnavailable, match=r"replica 0 .* its link was closed"):
                await task
            await head.engine.until(lambda: head.engine.aborted == ["a"])

    run(main)


def test_an_idle_link_stays_live_by_pings_and_beats():
    quick = HeartbeatSettings(interval=0.1, timeout=1)

    async def main():
        with Head(heartbeat=quick) as head:
            head.engine.paused = True
            async with linked(head.endpoint, heartbeat=quick) as link:
                task = asyncio.create_task(tokens_of(link.generate(generate())))
                await until(lambda: link.load.running == 1)
                await asyncio.sleep(3)
                assert link.contact is Contact.LIVE
                with head.engine.condition:
                    head.engine.paused = False
                    head.engine.condition.notify_all()
                assert await task == list(range(1, 9))
                await until(lambda: link.load.running == 0 and link.load.step == 8)
                assert head.engine.aborted == []

    run(main)


def test_a_head_that_closes_ends_all_answers_at_once():
    async def main():
        head = Head(replica=3)
        async with linked(head.endpoint) as link:
            requests = [generate(str(n), max_tokens=FOR_EVER) for n in range(3)]
            tasks = [asyncio.create_task(tokens_of(link.generate(request))) for request in requests]
            await until(lambda: len(head.engine.live) == 3)
            await asyncio.to_thread(head.close)
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, BackendUnavailable)
                assert "replica 3" in str(result) and "connection dropped" in str(result)
                assert result.retry_after >= 1
            with pytest.raises(BackendUnavailable, match="replica 3"):
                await anext(link.generate(generate("late")))

    run(main)


def test_a_head_that_falls_silent_is_lost_and_found_again():
    quick = HeartbeatSettings(interval=0.1, timeout=0.5)

    async def main():
        with Head() as head:
            head.engine.paused = True
            gate = threading.Event()
            gate.set()
            beat = head.server._beat
            head.server._beat = lambda: (gate.wait(DEADLINE), beat())[1]
            async with linked(head.endpoint, heartbeat=quick) as link:
                stream = link.generate(generate(max_tokens=FOR_EVER))
                task = asyncio.create_task(tokens_of(stream))
                await until(lambda: head.engine.live)
                gate.clear()  # the endpoint's thread hangs; its connection stays open
                with pytest.raises(
                    BackendUnavailable, match=r"has been silent for 0.5 s \(heartbeat.timeout\)"
                ):
                    await task
                gate.set()
                await until(lambda: link.contact is Contact.LIVE)
                await head.engine.until(lambda: head.engine.aborted == ["a"])

    run(main)


def test_a_dead_address_is_an_error_by_the_deadline():
    async def main():
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # bound but not listening: connects are refused
            address = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
            dead = Endpoint(
                replica=4, generation=1, address=address, public_key=new_key_pair().public, card=CARD
            )
            async with linked(dead, heartbeat=HeartbeatSettings(interval=0.1, timeout=0.5)) as link:
                with pytest.raises(BackendUnavailable, match=rf"replica 4 .* {address} within 0.5 s"):
                    await anext(link.generate(generate()))

    run(main)


def test_a_peer_that_accepts_and_says_nothing_is_an_error_by_the_deadline():
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as mute:
            address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
            endpoint = Endpoint(
                replica=0, generation=1, address=address, public_key=new_key_pair().public, card=CARD
            )
            async with linked(endpoint, heartbeat=HeartbeatSettings(interval=0.1, timeout=0.5)) as link:
                with pytest.raises(BackendUnavailable, match="could not be reached"):
                    await anext(link.generate(generate()))

    run(main)


def test_a_gateway_with_the_wrong_key_is_told_so():
    async def main():
        with Head() as head:
            async with linked(head.endpoint, keys=new_key_pair()) as link:
                with pytest.raises(BackendUnavailable, match=r"replica 0 .* refuses the gateways' CURVE key"):
                    await anext(link.generate(generate()))
            assert not head.engine.live

    run(main)


def test_a_head_with_another_key_is_not_trusted():
    async def main():
        with Head() as head:
            wrong = Endpoint(
                replica=0,
                generation=1,
                address=head.endpoint.address,
                public_key=new_key_pair().public,
                card=CARD,
            )
            async with linked(wrong, heartbeat=HeartbeatSettings(interval=0.1, timeout=2)) as link:
                with pytest.raises(BackendUnavailable, match="replica 0 is not available"):
                    await anext(link.generate(generate()))
            assert not head.engine.live

    run(main)


def test_an_oversized_request_fails_alone():
    wire = WireSettings(max_message=10_000)

    async def main():
        with Head(wire=wire) as head:
            async with linked(head.endpoint, wire=wire) as link:
                other = link.generate(generate("other", max_tokens=FOR_EVER))
                await anext(other)
                (delta,) = [delta async for delta in link.generate(generate("big", range(3000)))]
                assert delta.failure.param == "prompt" and "wire.max_message" in delta.failure.message
                await anext(other)
                await other.aclose()

    run(main)


def test_a_million_tokens_pass():
    async def main():
        with Head() as head:
            async with linked(head.endpoint) as link:
                stream = link.generate(generate(tokens=np.arange(1_000_000) % 1000))
                assert await tokens_of(stream) == list(range(1, 9))

    run(main)


def test_a_refused_request_ends_with_its_failure():
    async def main():
        with Head() as head:
            async with linked(head.endpoint) as link:
                (delta,) = [delta async for delta in link.generate(generate(tokens=[5000]))]
                assert "vocabulary" in delta.failure.message
                assert head.engine.aborted == []

    run(main)


def test_an_id_in_flight_is_not_taken_twice():
    async def main():
        with Head() as head:
            async with linked(head.endpoint) as link:
                first = link.generate(generate(max_tokens=FOR_EVER))
                await anext(first)
                with pytest.raises(ValueError, match="'a' is in flight"):
                    await anext(link.generate(generate()))
                assert (await anext(first)).tokens
                await first.aclose()

    run(main)


def test_messages_of_another_generation_or_none_are_ignored():
    async def main():
        with Head(generation=2) as head:
            older = Endpoint(
                replica=0,
                generation=1,
                address=head.endpoint.address,
                public_key=head.endpoint.public_key,
                card=CARD,
            )
            async with linked(older, heartbeat=HeartbeatSettings(interval=0.1, timeout=0.5)) as link:
                with pytest.raises(BackendUnavailable):
                    await anext(link.generate(generate()))
            assert not head.engine.live

    run(main)


def test_garbage_from_a_head_is_dropped():
    async def main():
        with Head() as head:
            head.engine.paused = True
            async with linked(head.endpoint) as link:
                task = asyncio.create_task(tokens_of(link.generate(generate())))
                await until(lambda: head.engine.live)
                garbled = iter([b"\xff", b"", b"\x01"])
                router = head.server._router
                send = router.send_multipart

                def garble(frames, flags):
                    send([frames[0], next(garbled, frames[1])], flags)

                router.send_multipart = garble
                await until(lambda: next(garbled, None) is None)
                with head.engine.condition:
                    head.engine.paused = False
                    head.engine.condition.notify_all()
                assert await task == list(range(1, 9))

    run(main)


HEAD_PROCESS = """
import sys, threading, time, json, itertools
from stratakv.actors.worker.endpoint import Emission, HeadEndpoint, Load
from stratakv.cluster.messages import Delta, ModelCard
from stratakv.cluster.settings import HeartbeatSettings, WireSettings

class Engine:
    def __init__(self): self.live = []
    def submit(self, client, request, keys): self.live.append((client, request.id))
    def abort(self, client, id): pass

engine = Engine()
card = ModelCard(name="toy", path="toy", vocab_size=1000, max_total_tokens=2000000, context_length=2000000,
                 page_size=64, eos_token_ids=(0,), identity="00")
head = HeadEndpoint(WireSettings(), HeartbeatSettings(), engine, allowed=sys.argv[1], generation=1, card=card,
                    load=lambda: Load(0, 0))
head.start()
print(json.dumps([head.address, head.public_key]), flush=True)
for step in itertools.count(1):
    head.deliver(step, [Emission(c, Delta(id=i, tokens=(step,))) for c, i in list(engine.live)])
    time.sleep(0.005)
"""


def test_a_killed_head_ends_its_answers_in_mid_stream():
    async def main():
        process = subprocess.Popen(
            [sys.executable, "-c", HEAD_PROCESS, GATEWAY.public], stdout=subprocess.PIPE
        )
        try:
            address, public = json.loads(await asyncio.to_thread(process.stdout.readline))
            endpoint = Endpoint(replica=1, generation=1, address=address, public_key=public, card=CARD)
            async with linked(endpoint) as link:
                stream = link.generate(generate(max_tokens=FOR_EVER))
                for _ in range(5):
                    assert (await anext(stream)).tokens
                process.kill()
                with pytest.raises(BackendUnavailable, match=r"replica 1 .* connection dropped"):
                    async for _ in stream:
                        pass
        finally:
            process.kill()
            process.wait(DEADLINE)
            process.stdout.close()

    run(main)
