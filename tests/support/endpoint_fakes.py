"""What tests of the head's endpoint share: an engine that only notes, and a client made of a bare socket."""

import queue
import time

import numpy as np
import zmq

from stratakv.actors.worker.endpoint import HeadEndpoint, Load
from stratakv.cluster.curve import new_key_pair, secure_client
from stratakv.cluster.events import PageEvents, Snapshot
from stratakv.cluster.messages import (
    Generate,
    ModelCard,
    Sampling,
    decode_to_gateway,
    decode_to_router,
    encode,
)
from stratakv.cluster.settings import HeartbeatSettings, WireSettings

DEADLINE = 30
GATEWAY = new_key_pair()
CARD = ModelCard(
    name="toy",
    path="toy",
    vocab_size=1000,
    max_total_tokens=2_000_000,
    context_length=2_000_000,
    page_size=4,
    eos_token_ids=(0,),
    identity="00",
)


class Inbox:
    """An engine that only notes what it is told."""

    def __init__(self):
        self.submitted = queue.Queue()
        self.aborted = queue.Queue()
        self.watched = queue.Queue()
        self.broken = False

    def submit(self, client, request, keys):
        if self.broken:
            raise RuntimeError("the engine is broken")
        self.submitted.put((client, request, keys))

    def abort(self, client, id):
        self.aborted.put((client, id))

    def watch(self, client):
        if self.broken:
            raise RuntimeError("the engine is broken")
        self.watched.put(client)

    def next_request(self):
        return self.submitted.get(timeout=DEADLINE)

    def next_abort(self):
        return self.aborted.get(timeout=DEADLINE)


class Client:
    """A gateway made of a bare socket."""

    def __init__(self, endpoint, keys=GATEWAY, hwm=1000):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        secure_client(self.socket, keys, endpoint.public_key)
        self.socket.linger = 0
        self.socket.rcvhwm = hwm
        self.socket.connect(endpoint.address)

    def send(self, message):
        self.socket.send(message if isinstance(message, bytes) else encode(message))

    def receive(self, kind, decode=decode_to_gateway):
        """The next message of `kind`; others are passed over."""
        until = time.monotonic() + DEADLINE
        while self.socket.poll(max(0, until - time.monotonic()) * 1000):
            message = decode(self.socket.recv())
            if isinstance(message, kind):
                return message
        raise TimeoutError(f"no {kind.__name__} came")

    def news(self):
        """The next of a router's messages that is no beat."""
        return self.receive((Snapshot, PageEvents), decode_to_router)

    def close(self):
        self.context.destroy(linger=0)


def open_endpoint(inbox, wire=None, heartbeat=None, **kwargs):
    return HeadEndpoint(
        wire or WireSettings(),
        heartbeat or HeartbeatSettings(interval=0.05, timeout=300),
        inbox,
        allowed=GATEWAY.public,
        generation=7,
        card=CARD,
        **{"load": lambda: Load(running=3, waiting=4), **kwargs},
    )


def generate(id="a", tokens=range(10), max_tokens=8, **kwargs):
    data = np.asarray(tokens, dtype="<u4").tobytes()
    return Generate(id=id, tokens=data, sampling=Sampling(max_tokens=max_tokens), **kwargs)
