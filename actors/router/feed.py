"""The router's line to one head: its page events and beats in, into the route book.

An asyncio task reads, another pings. Whatever may get lost (a batch, a chunk, the watch itself, the connection) shows
in the numbers of what comes next, at the latest in those of the next beat; then the feed watches again.
"""

import asyncio
import logging

import msgspec
import zmq.asyncio

from stratakv.cluster.dealer import Dealer
from stratakv.cluster.events import PageEvents, Snapshot, SnapshotParts, Watch, unpack_changes
from stratakv.cluster.messages import Beat, Endpoint, KeyPair, Ping, ToRouter, decode_to_router, encode
from stratakv.cluster.routing.book import RouteBook
from stratakv.cluster.routing.directory import Verdict
from stratakv.cluster.settings import HeartbeatSettings, WireSettings

_log = logging.getLogger(__name__)

_BATCH = 64  # messages taken in before the event loop gets its turn


class Feed:
    """Keeps what `book` knows of the replica behind `endpoint` exact, from `start` to `close`. On one event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        keys: KeyPair,
        wire: WireSettings,
        heartbeat: HeartbeatSettings,
        context: zmq.asyncio.Context,
        book: RouteBook,
    ):
        self.endpoint = endpoint
        self.snapshots = 0
        """Snapshots loaded so far."""
        self._book = book
        self._heartbeat = heartbeat
        self._parts = SnapshotParts()
        self._asked_at: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._dealer = Dealer(endpoint, keys, wire, context)
        book.directory.set_rules(endpoint.replica, endpoint.card.rules)

    def start(self) -> None:
        """Connect and watch. Needs the running event loop."""
        self._dealer.connect()
        self._watch()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._tend())]

    async def close(self) -> None:
        """End the tasks and the socket. What the book knows stays as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._dealer.close()

    def check(self) -> None:
        """Raise what ended a task, if one has ended by itself: a fault in the program, after which nothing is exact."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def _watch(self) -> None:
        """Ask for a snapshot and for events, unless the answer to that is still to come."""
        if self._asked_at is None and self._dealer.send(encode(Watch())):
            self._asked_at = asyncio.get_running_loop().time()

    async def _tend(self) -> None:
        """Say that we live, and ask again when an answer has not come for too long."""
        clock = asyncio.get_running_loop().time
        while True:
            self._dealer.send(encode(Ping()))
            if self._asked_at is not None and clock() - self._asked_at > self._heartbeat.timeout:
                self._asked_at = None
                self._watch()
            await asyncio.sleep(self._heartbeat.interval)

    async def _read(self) -> None:
        while True:
            await self._dealer.socket.poll()
            for _ in range(_BATCH):
                frames = self._dealer.receive()
                if frames is None:
                    break
                self._receive(frames)
            await asyncio.sleep(0)  # a poll that is ready does not yield, and routes are asked for meanwhile

    def _receive(self, frames: list[bytes]) -> None:
        try:
            (data,) = frames
            message = decode_to_router(data)
            verdict = self._take(message)
        except (ValueError, msgspec.MsgspecError) as error:
            # If it was a batch of events, the next number will show the gap.
            _log.warning("dropped a malformed message of replica %d: %s", self.endpoint.replica, error)
            return
        if verdict is Verdict.GAP:
            self._watch()

    def _take(self, message: ToRouter) -> Verdict:
        """Enter `message` in the book. ValueError if its keys are not whole."""
        replica, generation = self.endpoint.replica, self.endpoint.generation
        if message.generation != generation:
            return Verdict.STALE
        match message:
            case Beat(sequence=sequence):
                self._book.heard(replica, message)
                return self._book.directory.announced(replica, generation, sequence)
            case PageEvents(sequence=sequence):
                return self._book.directory.apply(replica, generation, sequence, unpack_changes(message))
            case Snapshot():
                return self._take_part(message)

    def _take_part(self, part: Snapshot) -> Verdict:
        if self._asked_at is not None:
            self._asked_at = asyncio.get_running_loop().time()  # it comes, however long it takes
        holdings = self._parts.add(part)
        if holdings is None:
            return Verdict.STALE
        replica, generation = self.endpoint.replica, self.endpoint.generation
        verdict = self._book.directory.load_snapshot(replica, generation, part.sequence, holdings)
        self._asked_at = None
        self.snapshots += 1
        _log.info(
            "replica %d, generation %d: snapshot %d with %d pages",
            replica,
            generation,
            part.sequence,
            len(holdings.held),
        )
        return verdict
