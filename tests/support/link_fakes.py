"""A head whose engine is a toy, and gateway links to it, all in one process over the real wire."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager

import numpy as np
import zmq
import zmq.asyncio

from stratakv.actors.gateway.link import HeadLink
from stratakv.actors.worker.endpoint import Emission, HeadEndpoint, Load
from stratakv.actors.worker.inbox import holds_nothing
from stratakv.cluster.curve import new_key_pair
from stratakv.cluster.messages import Delta, Endpoint, FinishReason, Generate, ModelCard, Sampling
from stratakv.cluster.settings import HeartbeatSettings, WireSettings

DEADLINE = 60
GATEWAY = new_key_pair()
# Silence never tells in these: whatever is noticed is noticed by other means.
PATIENT = HeartbeatSettings(interval=0.05, timeout=300)
CARD = ModelCard(
    name="toy",
    path="toy",
    vocab_size=1000,
    max_total_tokens=2_000_000,
    context_length=2_000_000,
    page_size=64,
    eos_token_ids=(0,),
    identity="00",
)


class ToyEngine:
    """Emits 1, 2, 3 ... for each request until `max_tokens`, a token a step, in a thread of its own."""

    def __init__(self):
        self.pace = 0.001  # seconds between steps
        self.condition = threading.Condition()
        self.live = {}
        self.aborted = []
        self.paused = False
        self.closing = False
        self.thread = threading.Thread(target=self.run, daemon=True)

    def submit(self, client, request, keys):
        with self.condition:
            self.live[client, request.id] = [0, request.sampling.max_tokens]
            self.condition.notify_all()

    def abort(self, client, id):
        with self.condition:
            if self.live.pop((client, id), None):
                self.aborted.append(id)
            self.condition.notify_all()

    def run(self):
        step = 0
        while True:
            with self.condition:
                self.condition.wait_for(lambda: self.closing or (self.live and not self.paused))
                if self.closing:
                    return
                step += 1
                emissions = [self.emit(*key) for key in list(self.live)]
            self.endpoint.deliver(step, emissions)
            time.sleep(self.pace)

    def emit(self, client, id):
        state = self.live[client, id]
        state[0] += 1
        finish = FinishReason.LENGTH if state[0] == state[1] else None
        if finish:
            del self.live[client, id]
        return Emission(client, Delta(id=id, tokens=(state[0],), finish=finish))

    async def until(self, condition):
        def wait():
            with self.condition:
                return self.condition.wait_for(condition, DEADLINE)

        assert await asyncio.to_thread(wait)

    def stop(self):
        with self.condition:
            self.closing = True
            self.condition.notify_all()
        self.thread.join(DEADLINE)


class Head:
    """A toy engine behind a real endpoint."""

    def __init__(
        self,
        replica=0,
        generation=1,
        heartbeat=PATIENT,
        wire=None,
        allowed=GATEWAY.public,
        explain=holds_nothing,
    ):
        self.engine = ToyEngine()
        self.server = HeadEndpoint(
            wire or WireSettings(),
            heartbeat,
            self.engine,
            allowed=allowed,
            generation=generation,
            card=CARD,
            load=lambda: Load(len(self.engine.live), 0),
            explain=explain,
        )
        self.engine.endpoint = self.server
        self.endpoint = Endpoint(
            replica=replica,
            generation=generation,
            address=self.server.address,
            public_key=self.server.public_key,
            card=CARD,
        )
        self.server.start()
        self.engine.thread.start()

    def close(self):
        self.engine.stop()
        self.server.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@asynccontextmanager
async def linked(endpoint, keys=GATEWAY, wire=None, heartbeat=PATIENT):
    context = zmq.asyncio.Context()
    link = HeadLink(endpoint, keys, wire or WireSettings(), heartbeat, context)
    link.start()
    try:
        yield link
    finally:
        await link.close()
        context.destroy(linger=0)


def run(main):
    """Run `main` under a deadline, and see that it leaves no task behind."""

    async def bounded():
        async with asyncio.timeout(DEADLINE):
            await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())


def generate(id="a", tokens=range(10), max_tokens=8):
    data = np.asarray(tokens, dtype="<u4").tobytes()
    return Generate(id=id, tokens=data, sampling=Sampling(max_tokens=max_tokens))


FOR_EVER = 1_000_000


async def tokens_of(stream):
    return [token async for delta in stream for token in delta.tokens]


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)
