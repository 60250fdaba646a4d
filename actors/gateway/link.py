"""A gateway's line to one head: requests out, tokens back, and the sense of whether the head still lives.

One asyncio task reads the socket and its monitor, another pings. A head is lost when its connection drops or
when it has been silent for `heartbeat.timeout`; then every answer in flight ends with BackendUnavailable. The
socket keeps reconnecting, so a head that was only out of reach is live again with its next beat.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator
from enum import Enum

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from stratakv.api.backend import BackendUnavailable
from stratakv.cluster.dealer import Dealer, resolved
from stratakv.cluster.explain import Explain, ExplainAnswer, Explained
from stratakv.cluster.messages import (
    Abort,
    Beat,
    Delta,
    Endpoint,
    Failure,
    Generate,
    KeyPair,
    Ping,
    Step,
    ToHead,
    decode_to_gateway,
    encode,
)
from stratakv.cluster.settings import HeartbeatSettings, WireSettings

_log = logging.getLogger(__name__)

_BATCH = 256  # messages taken in before the event loop gets its turn
_RETRY_AFTER = 5  # seconds a client is told to wait for a replica that was lost

_EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class Contact(Enum):
    """How a link stands with its head."""

    CONNECTING = "connecting"
    """Not heard yet, and the deadline for it has not passed."""
    LIVE = "live"
    LOST = "lost"


class HeadLink:
    """A DEALER to the head at `endpoint`, a CURVE client with the gateways' `keys`. Used on one event loop
    only.

    `start` opens it, `close` ends it with all its tasks. The deadline for first contact is
    `heartbeat.timeout` too.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        keys: KeyPair,
        wire: WireSettings,
        heartbeat: HeartbeatSettings,
        context: zmq.asyncio.Context,
    ):
        self.endpoint = endpoint
        self._max_message = wire.max_message
        self._heartbeat = heartbeat
        self._contact = Contact.CONNECTING
        self._was_live = False
        self._why = "it was never heard"
        self._settled = asyncio.Event()
        self._heard_at = 0.0
        self._load = Beat(endpoint.generation, 0, 0, 0)
        self._streams: dict[str, asyncio.Queue[Delta | BackendUnavailable]] = {}
        self._asked: dict[str, asyncio.Future[ExplainAnswer]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._dealer = Dealer(endpoint, keys, wire, context)
        self._monitor = self._dealer.socket.get_monitor_socket(_EVENTS)

    def start(self) -> None:
        """Connect and keep watch. Needs the running event loop."""
        self._heard_at = asyncio.get_running_loop().time()
        self._dealer.connect()
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._ping())]

    async def close(self) -> None:
        """End the answers in flight with BackendUnavailable, and all tasks and sockets. Closing twice does nothing."""
        if self._closed:
            return
        self._lose("its link was closed")
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._dealer.socket.disable_monitor()
        self._monitor.close(linger=0)
        self._dealer.close()

    @property
    def contact(self) -> Contact:
        """How the link stands with its head now."""
        return self._contact

    @property
    def why_lost(self) -> str:
        """What ended the contact, or kept it from being made, as the end of a sentence about the replica."""
        return self._why

    @property
    def was_live(self) -> bool:
        """Whether the head has ever been heard."""
        return self._was_live

    @property
    def in_flight(self) -> int:
        """Requests of this gateway that the head has and has not ended."""
        return len(self._streams)

    @property
    def load(self) -> Beat:
        """The head's last beat; zeros before the first."""
        return self._load

    async def generate(self, request: Generate) -> AsyncGenerator[Delta]:
        """Send `request`, yield its deltas until the one with `finish` or `failure`. Closing it early aborts
        it.

        Waits for first contact. Raises BackendUnavailable, which names the replica, when the head is or gets
        lost; ValueError if a request with this id is in flight.
        """
        data = encode(request)
        if len(data) > self._max_message:
            # The head would drop the whole connection, and every other answer on it.
            yield Delta(id=request.id, failure=_too_large(len(data), self._max_message))
            return
        if self._contact is Contact.CONNECTING:
            await self._settled.wait()  # _watch settles it by the deadline
        if self._contact is not Contact.LIVE:
            raise self._unavailable()
        if request.id in self._streams:
            raise ValueError(f"request id {request.id!r} is in flight already")
        queue = self._streams[request.id] = asyncio.Queue()
        ended = False
        try:
            if not self._dealer.send(data):
                raise self._no_room()
            while not ended:
                item = await queue.get()
                if isinstance(item, BackendUnavailable):
                    raise item
                ended = item.finish is not None or item.failure is not None
                yield item
        finally:
            del self._streams[request.id]
            if not ended:
                self._dealer.send(encode(Abort(request.id)))

    async def explain(self, keys: bytes) -> ExplainAnswer:
        """Where the head has the pages of `keys`, which are packed. BackendUnavailable when the head is lost, or gets
        lost before it has answered. Wait for it under a deadline: a head answers between two steps."""
        if self._contact is not Contact.LIVE:
            raise self._unavailable()
        id = uuid.uuid4().hex
        answer: asyncio.Future[ExplainAnswer] = asyncio.get_running_loop().create_future()
        self._asked[id] = answer
        try:
            if not self._dealer.send(encode(Explain(id, keys))):
                raise self._no_room()
            return await answer
        finally:
            del self._asked[id]

    async def _ping(self) -> None:
        ping: ToHead = Ping()
        while True:
            self._dealer.send(encode(ping))
            await asyncio.sleep(self._heartbeat.interval)

    async def _watch(self) -> None:
        """Read all that comes, and judge silence. The only reader of the socket and its monitor."""
        clock = asyncio.get_running_loop().time
        poller = zmq.asyncio.Poller()
        poller.register(self._dealer.socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        try:
            while True:
                left = self._heard_at + self._heartbeat.timeout - clock()
                # A lost head is judged no more; only news of it can change that.
                await poller.poll(None if self._contact is Contact.LOST else max(1, int(left * 1000)))
                # Messages first: what arrived before the connection dropped still counts.
                self._read_messages()
                self._read_events()
                await asyncio.sleep(
                    0
                )  # a poll that is ready does not yield, and those who read the answers must run
                if self._contact is not Contact.LOST and clock() - self._heard_at > self._heartbeat.timeout:
                    self._lose(self._silence())
        except Exception:
            _log.exception("the link to replica %d failed", self.endpoint.replica)
            self._lose("the gateway's link to it failed; see the gateway's log")

    def _read_messages(self) -> None:
        for _ in range(_BATCH):
            frames = self._dealer.receive()
            if frames is None:
                return
            try:
                (data,) = frames
                message = decode_to_gateway(data)
            except (ValueError, msgspec.MsgspecError) as error:
                _log.warning("dropped a malformed message of replica %d: %s", self.endpoint.replica, error)
                continue
            if message.generation != self.endpoint.generation:
                continue
            self._hear()
            match message:
                case Beat():
                    self._load = message
                case Explained(id=id, answer=answer):
                    if id in self._asked and not self._asked[id].done():
                        self._asked[id].set_result(answer)
                case Step(deltas=deltas):
                    for delta in deltas:
                        if delta.id in self._streams:
                            self._streams[delta.id].put_nowait(delta)

    def _read_events(self) -> None:
        while True:
            try:
                frames = resolved(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            event = parse_monitor_message(frames)["event"]
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._lose("it refuses the gateways' CURVE key")
            elif event != zmq.EVENT_DISCONNECTED:
                self._lose(
                    "the CURVE handshake with it failed: its key or the gateways' key is not the right one"
                )
            elif self._contact is Contact.LIVE:
                self._lose("its connection dropped")
            elif self._contact is Contact.CONNECTING:
                self._why = "it dropped the connection before it said anything"

    def _hear(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._contact, self._was_live = Contact.LIVE, True
        self._settled.set()

    def _silence(self) -> str:
        limit = f"{self._heartbeat.timeout:g} s (heartbeat.timeout)"
        if self._contact is Contact.CONNECTING:
            return f"it could not be reached at {self.endpoint.address} within {limit}; {self._why}"
        return f"it has been silent for {limit}"

    def _lose(self, why: str) -> None:
        """The head is lost: fail every answer in flight. With first contact still awaited, stop waiting for it."""
        if self._contact is not Contact.LOST:
            _log.warning(
                "replica %d, generation %d: %s", self.endpoint.replica, self.endpoint.generation, why
            )
        self._contact, self._why = Contact.LOST, why
        self._settled.set()
        for queue in self._streams.values():
            queue.put_nowait(self._unavailable())
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(self._unavailable())

    def _no_room(self) -> BackendUnavailable:
        return BackendUnavailable(f"replica {self.endpoint.replica} takes no more messages now", _RETRY_AFTER)

    def _unavailable(self) -> BackendUnavailable:
        return BackendUnavailable(
            f"replica {self.endpoint.replica} is not available: {self._why}", _RETRY_AFTER
        )


def _too_large(size: int, limit: int) -> Failure:
    message = f"the request is {size} bytes on the wire; wire.max_message allows {limit}. Shorten the prompt"
    return Failure("request_too_large", message, "prompt")
