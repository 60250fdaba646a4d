"""The way of a plan from the head to the other ranks of its replica: numbered messages over ZeroMQ.

Ranks wait here, and not in a collective, so an idle replica costs nothing and nobody's clock matters: a wait for a plan
has no deadline. Plans carry numbers without gaps and the generation; anything else ends the generation. The head
beats on a socket of its own, from a thread of its own, so that a rank can tell a head with nothing to do from one that
is gone.
"""

import errno
import logging
import threading
import time
from typing import Any, Union

import msgspec
import zmq

from stratakv.cluster.curve import Gatekeeper, new_key_pair, secure_client, secure_server
from stratakv.cluster.plan import Plan
from stratakv.cluster.rendezvous import Rendezvous

_log = logging.getLogger(__name__)

_HERE = "tcp://127.0.0.1"  # the ranks of a replica are on one machine
_POLL = 200  # milliseconds between two looks at whether this end is being closed
_CLOSE_DEADLINE = 5.0


class ChannelError(Exception):
    """The ranks of this generation cannot go on together. The message names the rank."""


class HeadLost(ChannelError):
    """Nothing has been heard of the head for long."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A rank is connected and waits for plans."""

    rank: int
    generation: int


class Ordered(msgspec.Struct, frozen=True, tag="plan"):
    """The next plan."""

    generation: int
    plan: Plan


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """No further plan will come: the replica ends in good order."""

    generation: int


_FromHead = Union[Ordered, Stop]  # noqa: UP007 - msgspec decodes a typing.Union
_encode = msgspec.msgpack.encode
_hello = msgspec.msgpack.Decoder(Hello)
_from_head = msgspec.msgpack.Decoder(_FromHead)


class PlanSender:
    """The head's end, with CURVE keys of its own: it lets in only ranks that have `rank_keys`.

    `interval` is seconds between beats, which begin at once. `await_ranks`, `send` and `close` are called by one
    thread at a time.
    """

    def __init__(self, generation: int, ranks: int, interval: float):
        self._generation = generation
        self._awaited = set(range(1, ranks))
        self._peers = [_identity(rank) for rank in sorted(self._awaited)]
        self._interval = interval
        self._number = 0
        self.rank_keys = new_key_pair()
        """What ranks come in by."""
        self._keys = new_key_pair()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gatekeeper = Gatekeeper(self._context, frozenset({self.rank_keys.public}))
        self._plans = self._open(zmq.ROUTER)
        self._plans.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._beats = self._open(zmq.PUB)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="plan-beats", daemon=True)
        self._plans.bind(f"{_HERE}:*")
        self._beats.bind(f"{_HERE}:*")
        self._addresses = [_address(self._plans), _address(self._beats)]
        self._thread.start()

    def rendezvous(self, store_port: int) -> Rendezvous:
        """What the other ranks need to come here, and to the process groups' store at `store_port`."""
        plans, beats = self._addresses
        return Rendezvous(
            generation=self._generation, store_port=store_port, plans=plans, beats=beats,
            head_key=self._keys.public, rank_keys=self.rank_keys,
        )  # fmt: skip

    def await_ranks(self, deadline: float) -> None:
        """Wait until every other rank listens for plans. ChannelError that names those missing after `deadline` s."""
        until = time.monotonic() + deadline
        while self._awaited:
            left = until - time.monotonic()
            if left <= 0 or not self._plans.poll(int(left * 1000)):
                missing = ", ".join(map(str, sorted(self._awaited)))
                raise ChannelError(
                    f"rank {missing} of this replica did not come within {deadline:g} s "
                    "(supervisor.start_timeout)"
                )
            hello = _hello.decode(self._plans.recv_multipart()[-1])
            if hello.generation != self._generation:
                raise ChannelError(f"rank {hello.rank} came with generation {hello.generation}")
            self._awaited.discard(hello.rank)

    def send(self, plan: Plan) -> None:
        """Send the next plan to all other ranks. ChannelError if one is gone or takes nothing any more."""
        if plan.number != self._number + 1:
            raise ChannelError(f"plan {plan.number} was to be sent after plan {self._number}")
        self._number = plan.number
        self._send(_encode(Ordered(self._generation, plan)))

    def close(self) -> None:
        """Tell the ranks that it is over, and close. May be called more than once."""
        if self._closing.is_set():
            return
        self._closing.set()
        try:
            self._send(_encode(Stop(self._generation)))
        except ChannelError as error:
            _log.info("a rank was not told of the end: %s", error)
        self._thread.join(_CLOSE_DEADLINE)
        self._context.destroy(linger=1000)

    def _open(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        secure_server(socket, self._keys)
        return socket

    def _send(self, data: bytes) -> None:
        for rank, peer in enumerate(self._peers, start=1):
            try:
                self._plans.send_multipart([peer, data], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                if error.errno not in (errno.EHOSTUNREACH, errno.EAGAIN):
                    raise
                why = "is gone" if error.errno == errno.EHOSTUNREACH else "has stopped to read its plans"
                raise ChannelError(f"rank {rank} of this replica {why}") from None

    def _beat(self) -> None:
        """The thread: let ranks in, and beat."""
        due = time.monotonic()
        while not self._closing.is_set():
            wait = min(_POLL, max(0, int((due - time.monotonic()) * 1000)))
            if self._gatekeeper.socket.poll(wait):
                self._gatekeeper.answer()
            if time.monotonic() >= due:
                due = time.monotonic() + self._interval
                self._beats.send(b"")


class PlanReceiver:
    """The end of rank `rank`. `silence` is how many seconds without a beat of the head make it lost.

    Everything but `close` is called by one thread at a time.
    """

    def __init__(self, rendezvous: Rendezvous, rank: int, silence: float):
        self._rank, self._silence = rank, silence
        self._generation = rendezvous.generation
        self._number = 0
        self._closing = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._plans = self._open(zmq.DEALER, rendezvous)
        self._plans.setsockopt(zmq.ROUTING_ID, _identity(rank))
        self._beats = self._open(zmq.SUB, rendezvous)
        self._beats.setsockopt(zmq.CONFLATE, 1)  # only the latest counts
        self._beats.setsockopt(zmq.SUBSCRIBE, b"")
        self._plans.connect(rendezvous.plans)
        self._beats.connect(rendezvous.beats)

    def hello(self) -> None:
        """Tell the head that this rank is ready for plans. Once, before `receive`."""
        self._plans.send(_encode(Hello(self._rank, self._generation)))

    def receive(self) -> Plan | None:
        """Wait for the next plan, for ever if need be; None once there will be no more.

        HeadLost when the head has not beaten for long while this waited. ChannelError for a plan that is not the next.
        """
        poller = zmq.Poller()
        poller.register(self._plans, zmq.POLLIN)
        poller.register(self._beats, zmq.POLLIN)
        heard_at = time.monotonic()  # beats that came during the last step may not have been read in yet
        while not self._closing.is_set():
            ready = dict(poller.poll(_POLL))
            if self._plans in ready:
                return self._next(self._plans.recv())
            if self._beats in ready:
                self._beats.recv()
                heard_at = time.monotonic()
            elif (silent := time.monotonic() - heard_at) > self._silence:
                raise HeadLost(
                    f"rank {self._rank} has heard nothing of its head for {silent:.0f} s and gives up"
                )
        return None

    def _next(self, data: bytes) -> Plan | None:
        message = _from_head.decode(data)
        if message.generation != self._generation:
            raise ChannelError(
                f"rank {self._rank} is of generation {self._generation} and got a message of generation "
                f"{message.generation}"
            )
        if isinstance(message, Stop):
            return None
        if message.plan.number != self._number + 1:
            raise ChannelError(
                f"rank {self._rank} got plan {message.plan.number} after plan {self._number}; one was lost"
            )
        self._number = message.plan.number
        return message.plan

    def stop(self) -> None:
        """Let `receive` return None soon. From any thread."""
        self._closing.set()

    def close(self) -> None:
        """Close the sockets; no other thread may be in `receive` any more. May be called more than once."""
        self._closing.set()
        self._context.destroy(linger=0)

    def _open(self, kind: int, rendezvous: Rendezvous) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        secure_client(socket, rendezvous.rank_keys, rendezvous.head_key)
        return socket


def _identity(rank: int) -> bytes:
    return f"rank-{rank}".encode()


def _address(socket: "zmq.Socket[Any]") -> str:
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes)
    return bound.decode()
