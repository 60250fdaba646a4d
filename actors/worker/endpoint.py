"""The head's ear and mouth: the thread that takes requests from gateways and sends them their tokens, and tells
routers of the pages.

All ZeroMQ work of a head happens in the one thread of `HeadEndpoint`. The engine's thread hands over what a
step emitted, and which pages came and went, through a queue and a socket pair that wakes the poller, and is never
blocked: a gateway that is gone or too slow loses its requests instead, and a router must ask for a snapshot again.
"""

import errno
import logging
import math
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import zmq

from stratakv.actors.worker.inbox import Emission as Emission
from stratakv.actors.worker.inbox import Emitted, ExplainPages, SnapshotAnswer, Told, holds_nothing
from stratakv.actors.worker.inbox import EngineInbox as EngineInbox
from stratakv.actors.worker.inbox import Load as Load
from stratakv.actors.worker.intake import Refused, page_keys
from stratakv.actors.worker.live import LiveRequests
from stratakv.actors.worker.watchers import Watchers
from stratakv.cluster.curve import Gatekeeper, new_key_pair, secure_server
from stratakv.cluster.events import PackedKeys, Watch
from stratakv.cluster.explain import Explain, ExplainAnswer, Explained
from stratakv.cluster.messages import (
    Abort,
    Beat,
    Delta,
    Failure,
    Generate,
    HierarchyCounts,
    ModelCard,
    Ping,
    Step,
    ToGateway,
    ToRouter,
    decode_to_head,
    encode,
)
from stratakv.cluster.settings import HeartbeatSettings, WireSettings
from stratakv.storage.residence import Changes, Holdings

_log = logging.getLogger(__name__)

_REMEMBER = 60.0  # seconds a silent client is still sent beats
_BATCH = 64  # messages taken in before outgoing ones get their turn
_CLOSE_DEADLINE = 5.0


@dataclass(slots=True)
class _Client:
    """A client that is connected: when it spoke last, which requests it has here, and failures it was not told yet."""

    heard_at: float
    live: LiveRequests = field(default_factory=LiveRequests)
    owed: list[Delta] = field(default_factory=list)


class HeadEndpoint:
    """A bound ROUTER with its own CURVE keys that admits only clients whose public key is `allowed`.

    `card` bounds what requests may ask; `load` and `counts` are called once a second for the beats, by the endpoint's
    thread; `explain` says where pages are. Binding happens here (zmq.ZMQError names the address); the thread runs from
    `start` to `close`.
    """

    def __init__(
        self,
        settings: WireSettings,
        heartbeat: HeartbeatSettings,
        engine: EngineInbox,
        *,
        allowed: str,
        generation: int,
        card: ModelCard,
        load: Callable[[], Load],
        counts: Callable[[], HierarchyCounts] = HierarchyCounts,
        explain: ExplainPages = holds_nothing,
    ):
        self._heartbeat, self._engine, self._card = heartbeat, engine, card
        self._load, self._counts, self._explain = load, counts, explain
        self._generation = generation
        self._step = 0
        self._clients: dict[bytes, _Client] = {}
        self._watchers = Watchers(generation)
        self._outbox: deque[Emitted | Changes | SnapshotAnswer | Told] = deque()
        self._closing = threading.Event()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        keys = new_key_pair()
        self.public_key = keys.public
        """The CURVE public key that clients must know (Z85)."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._gatekeeper = Gatekeeper(self._context, frozenset([allowed]))
            self._router = self._context.socket(zmq.ROUTER)
            secure_server(self._router, keys)
            # Mandatory: sending to a client that is gone, or whose backlog is full, is an error.
            self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self._router.setsockopt(zmq.LINGER, 0)
            self._router.setsockopt(zmq.SNDHWM, settings.backlog)
            self._router.setsockopt(zmq.MAXMSGSIZE, settings.max_message)
            self._router.bind(f"tcp://{settings.bind_host}:*")
        except BaseException:
            self._release()
            raise
        bound = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = _advertised(bound, settings.advertise_host)
        """Where clients connect, `tcp://host:port`."""
        self._thread = threading.Thread(target=self._run, name="head-endpoint", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs. False after `start` and before `close` means that the head is deaf and must go."""
        return self._thread.is_alive()

    def deliver(self, step: int, emissions: Sequence[Emission]) -> None:
        """Send what step number `step` emitted: one message per client. Returns at once; call it from one thread.

        RuntimeError if the thread has failed. Emissions of requests that were aborted meanwhile are dropped. Steps
        that emit nothing may be reported too.
        """
        self._outbox.append(Emitted(step, emissions))
        self._wake()

    def deliver_events(self, changes: Changes) -> None:
        """Tell all routers that watch what has changed since the last call; an empty change is no event. Returns at
        once; call it from the thread that calls `deliver`. RuntimeError if the endpoint's thread has failed."""
        if changes:
            self._outbox.append(changes)
            self._wake()

    def deliver_snapshot(self, client: bytes, holdings: Holdings) -> None:
        """Answer the watch of `client` with what is held now, all changes so far having been given to
        `deliver_events`. `holdings` must not change afterwards. Else as there."""
        self._outbox.append(SnapshotAnswer(client, holdings))
        self._wake()

    def wait_for(self, id: str, deadline: float) -> None:
        """Return when request `id` is over, or after `deadline` seconds; at once if it is not live. From any thread."""
        for peer in list(self._clients.values()):
            peer.live.wait(id, deadline)

    def close(self) -> None:
        """End the thread, close the sockets and drop what was not sent. RuntimeError if the thread does not end."""
        self._closing.set()
        if self._thread.ident is None:
            self._release()
            return
        self._wake()
        self._thread.join(_CLOSE_DEADLINE)
        if self._thread.is_alive():
            raise RuntimeError(f"the head's endpoint thread did not end within {_CLOSE_DEADLINE:g} s")

    def _wake(self) -> None:
        try:
            self._wake_writer.send(b"\0")
        except BlockingIOError:
            pass  # the buffer is full of wake-ups already
        except OSError as error:
            if not self._closing.is_set():
                raise RuntimeError("the head's endpoint failed; this generation must end") from error

    def _release(self) -> None:
        self._context.destroy(linger=0)
        self._wake_reader.close()
        self._wake_writer.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        for source in (self._router, self._gatekeeper.socket, self._wake_reader):
            poller.register(source, zmq.POLLIN)
        tick_at = time.monotonic()
        try:
            while not self._closing.is_set():
                wait = max(0, math.ceil((tick_at - time.monotonic()) * 1000))
                ready = {source for source, _ in poller.poll(wait)}
                if self._gatekeeper.socket in ready:
                    self._gatekeeper.answer()
                if self._wake_reader.fileno() in ready:
                    self._wake_reader.recv(4096)
                self._flush()
                if self._router in ready:
                    self._receive()
                if time.monotonic() >= tick_at:
                    tick_at = time.monotonic() + self._heartbeat.interval
                    self._tick()
        except Exception:
            _log.exception("the head's endpoint failed; gateways will see it as gone")
        finally:
            for peer in self._clients.values():
                peer.live.end(list(peer.live))
            self._release()

    # -- from gateways

    def _receive(self) -> None:
        for _ in range(_BATCH):
            try:
                client, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            peer = self._hear(client)
            if peer is None:
                continue
            try:
                (data,) = frames
                message = decode_to_head(data)
            except (ValueError, msgspec.MsgspecError) as error:
                _log.warning("dropped a malformed message of gateway %s: %s", client.hex(), error)
                continue
            match message:
                case Generate():
                    self._begin(client, peer, message)
                case Abort(id=id):
                    peer.live.end([id])
                    self._engine.abort(client, id)
                case Watch():
                    self._begin_watch(client)
                case Explain():
                    self._begin_explain(client, message)
                case Ping():
                    pass

    def _hear(self, client: bytes) -> _Client | None:
        """Note that `client` spoke. A new one gets a beat at once; None if it is gone since."""
        now = time.monotonic()
        if client in self._clients:
            self._clients[client].heard_at = now
        else:
            self._clients[client] = _Client(now)
            self._send(client, self._beat())
        return self._clients.get(client)

    def _begin(self, client: bytes, peer: _Client, request: Generate) -> None:
        if request.id in peer.live:
            _log.warning("dropped request %r of gateway %s: it is live already", request.id, client.hex())
            return
        try:
            keys = page_keys(request, self._card)
            peer.live.add(request.id)
            self._engine.submit(client, request, keys)
        except Exception as error:
            peer.live.end([request.id])
            if isinstance(error, Refused):
                failure = error.failure
            else:
                _log.exception("request %r could not be given to the engine", request.id)
                failure = Failure(
                    "server_error", "the engine could not take the request; see the worker's log"
                )
            delta = Delta(id=request.id, failure=failure)
            self._send(client, Step(self._generation, self._step, [delta]))

    def _begin_watch(self, client: bytes) -> None:
        if not self._watchers.ask(client):
            return
        try:
            self._engine.watch(client)
        except Exception:
            self._watchers.drop(client)
            _log.exception("the watch of router %s could not be given to the engine", client.hex())

    def _begin_explain(self, client: bytes, asked: Explain) -> None:
        def answer(answer: ExplainAnswer) -> None:
            self._outbox.append(Told(client, asked.id, answer))
            self._wake()

        try:
            self._explain(list(PackedKeys(asked.keys)), answer)
        except Exception:
            _log.exception("gateway %s gets no answer on where pages are", client.hex())

    # -- to gateways and routers

    def _flush(self) -> None:
        # What comes meanwhile waits its turn: messages and beats are due too.
        for _ in range(len(self._outbox)):
            match self._outbox.popleft():
                case Emitted(step, emissions):
                    self._send_emissions(step, emissions)
                case SnapshotAnswer(client, holdings):
                    parts = self._watchers.answer(client, holdings)
                    all(self._send(client, part) for part in parts)  # a part not sent ends the watch
                case Changes() as changes:
                    self._send_events(changes)
                case Told(client, id, told) if client in self._clients:
                    self._send(client, Explained(self._generation, id, told))

    def _send_events(self, changes: Changes) -> None:
        events = self._watchers.number(changes)
        if events is not None:
            for client in self._watchers.following():
                self._send(client, events)

    def _send_emissions(self, step: int, emissions: Sequence[Emission]) -> None:
        self._step = step
        deltas: defaultdict[bytes, list[Delta]] = defaultdict(list)
        for client, delta in emissions:
            deltas[client].append(delta)
        for client, batch in deltas.items():
            self._send_step(client, batch)

    def _send_step(self, client: bytes, batch: list[Delta]) -> None:
        peer = self._clients.get(client)
        if peer is None:
            return
        batch = [delta for delta in batch if delta.id in peer.live]
        # Only what was sent may be forgotten: an unsent last delta is owed as a failure.
        if batch and self._send(client, Step(self._generation, self._step, batch)):
            peer.live.end(delta.id for delta in batch if delta.finish or delta.failure)

    def _send(self, client: bytes, message: ToGateway | ToRouter) -> bool:
        """Hand `message` to ZeroMQ. If the client is gone it is forgotten, if it is too slow its requests and its
        watch end; False.
        """
        try:
            self._router.send_multipart([client, encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            self._abandon(client, "reads too slowly")
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._abandon(client, "is gone")
            del self._clients[client]
        else:
            return True
        return False

    def _abandon(self, client: bytes, why: str) -> None:
        """End a client's watch and all its requests, and owe it a failure for each, should it come back."""
        if self._watchers.drop(client):
            _log.warning("router %s %s; it must watch again", client.hex(), why)
        peer = self._clients[client]
        if peer.live:
            _log.warning("gateway %s %s; aborting its %d requests", client.hex(), why, len(peer.live))
        for id in peer.live:
            self._engine.abort(client, id)
            failure = Failure("gateway_lost", f"the head ended this request because its gateway {why}")
            peer.owed.append(Delta(id=id, failure=failure))
        peer.live.end(list(peer.live))

    def _beat(self) -> Beat:
        load = self._load()
        return Beat(
            self._generation, self._step, load.waiting, load.running, self._watchers.sequence, self._counts()
        )

    def _tick(self) -> None:
        """Once an interval: judge silence, say what is owed, beat."""
        now = time.monotonic()
        # Pings that wait unread are not silence: it was this process that did not get to run.
        unread = self._router.poll(0)
        beat = self._beat()
        for client, peer in list(self._clients.items()):
            silent = 0.0 if unread else now - peer.heard_at
            if silent > self._heartbeat.timeout:
                self._abandon(client, f"has been silent for {silent:.1f} s")
            if silent > _REMEMBER:
                del self._clients[client]
                continue
            if peer.owed and self._send(client, Step(self._generation, self._step, peer.owed)):
                peer.owed = []
            if client in self._clients:
                self._send(client, beat)


def _advertised(bound: str, host: str | None) -> str:
    """The bound address with `host` in place of its own, if there is one."""
    if host is None:
        return bound
    port = bound.rpartition(":")[2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
