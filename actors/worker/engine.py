"""The engine: one thread that plans, executes and takes in steps while there is work, and sleeps while there is none.

Requests come in from the endpoint's thread and wait in an inbox; only the engine's thread touches the head. What a
step emitted goes out in one call.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from stratakv.actors.worker.config import Heartbeat
from stratakv.actors.worker.endpoint import Emission, Load
from stratakv.actors.worker.head import Head
from stratakv.actors.worker.request import Request, RequestId
from stratakv.actors.worker.team import Executes
from stratakv.cluster.messages import Delta, Failure, Generate, HierarchyCounts, unpack_tokens
from stratakv.storage.hierarchy_check import idle_problems
from stratakv.storage.residence import Changes, Holdings
from stratakv.storage.tiers import PageKey
from stratakv.storage.wanted import Stored

_log = logging.getLogger(__name__)

_EMPTY_STEP_WAIT = 0.002  # seconds between empty plans at first, doubled up to:
_EMPTY_STEP_WAIT_MAX = 0.020
_LOOK_AT_DEADLINES = 0.5  # seconds

OVERLOADED = "rate_limit_exceeded"
"""Failure code of a request that found the queue full."""
DRAINING = "unavailable"
"""Failure code of a request that came while the replica was shutting down, or was still there when it ended."""


class Outlet(Protocol):
    """Where the engine's news go; called from its thread alone. `HeadEndpoint` is one."""

    def deliver(self, step: int, emissions: Sequence[Emission]) -> None:
        """What step number `step` emitted; may be nothing."""

    def deliver_events(self, changes: Changes) -> None:
        """What has changed in where pages are."""

    def deliver_snapshot(self, client: bytes, holdings: Holdings) -> None:
        """The answer to a watch: where all pages are, after all changes delivered so far."""


class Found(NamedTuple):
    """What the store has of what was asked for `id`."""

    id: RequestId
    stored: Stored


class Watched(NamedTuple):
    """A router wants a snapshot."""

    client: bytes


class Called(NamedTuple):
    """Something that only the engine's thread may do."""

    work: Callable[[], None]


class Engine:
    """Runs a head and its rank, and tells `connect`'s outlet after each step.

    `submit`, `abort`, `watch`, `found`, `load`, `heartbeat` and `idle_check` may be called from any thread.
    """

    def __init__(self, page_size: int):
        self._page_size = page_size
        self._inbox: deque[Request | RequestId | Found | Watched | Called] = deque()
        self._checks: deque[Future[list[str]]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._draining = False
        self._step = 0
        self._step_began: float | None = None
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -- from other threads ----------------------------------------------------------------------------------

    def submit(self, client: bytes, request: Generate, keys: list[PageKey]) -> None:
        """Queue a valid request; a refusal is emitted as a failure."""
        id = RequestId(client, request.id)
        tokens = unpack_tokens(request.tokens)
        self._post(Request(id, request, tokens, keys, self._page_size))

    def abort(self, client: bytes, id: str) -> None:
        """End a request and free what it holds; unknown ids are ignored."""
        self._post(RequestId(client, id))

    def watch(self, client: bytes) -> None:
        """A router wants to follow the pages of this replica."""
        self._post(Watched(client))

    def found(self, id: RequestId, stored: Stored) -> None:
        """The answer of the store for a waiting request."""
        self._post(Found(id, stored))

    def call(self, work: Callable[[], None]) -> None:
        """Have `work` done by the engine's thread, between two steps. What it raises is logged."""
        self._post(Called(work))

    def counts(self) -> HierarchyCounts:
        """What the hierarchy has done so far."""
        return self._head.counts()

    def load(self) -> Load:
        """How many requests run and wait now."""
        scheduler = self._head.scheduler
        return Load(len(scheduler.running), len(scheduler.waiting) + len(self._inbox))

    def heartbeat(self) -> Heartbeat:
        """A sign of life of the thread. Raises RuntimeError once it has failed."""
        if self._failed is not None:
            raise RuntimeError(f"the engine ended: {self._failed}") from self._failed
        began = self._step_began
        age = 0.0 if began is None else time.monotonic() - began
        return Heartbeat(self._step, age if self._step else None)

    def idle_check(self, deadline: float = 10.0) -> list[str]:
        """What is wrong with the slots and holds of an idle replica; waits up to `deadline` seconds for it to be
        idle."""
        check: Future[list[str]] = Future()
        with self._wake:
            self._checks.append(check)
            self._wake.notify()
        try:
            return check.result(deadline)
        except TimeoutError:
            running, waiting = self.load()
            return [f"not idle after {deadline:g} s: {running} requests run, {waiting} wait"]

    def connect(self, head: Head, rank: Executes, outlet: Outlet) -> None:
        """What to run, what carries its plans out, and whom to tell. Once, before `start`."""
        self._head, self._rank, self._outlet = head, rank, outlet

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def drain(self, deadline: float) -> None:
        """Refuse new requests and wait up to `deadline` seconds until none is left."""
        with self._wake:
            self._draining = True
        until = time.monotonic() + deadline
        while time.monotonic() < until and self._thread.is_alive() and self.load() != Load(0, 0):
            time.sleep(0.02)

    def stop(self, deadline: float = 60.0) -> None:
        """End the thread after the step it is in; requests that are left are told. RuntimeError past `deadline`."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(deadline)
            if self._thread.is_alive():
                raise RuntimeError(f"the engine's thread is still in a step after {deadline:g} s")

    def _post(self, item: Request | RequestId | Found | Watched | Called) -> None:
        with self._wake:
            self._inbox.append(item)
            self._wake.notify()

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                if not self._work():
                    self._sleep()
            self._outlet.deliver(
                self._step,
                self._head.abort_all(Failure(DRAINING, "the replica is shutting down; send it again")),
            )
        except BaseException as error:
            self._failed = error
            _log.exception("the engine failed in step %d; this generation of the replica ends", self._step)

    def _work(self) -> bool:
        """Take in what came, then run steps until none is left to run. True if there was anything to do."""
        self._take_inbox()
        plan = self._head.plan()
        empty_wait = _EMPTY_STEP_WAIT
        worked = plan is not None
        while plan is not None:
            self._step_began = time.monotonic()
            emissions = self._head.absorb(self._rank.execute(plan))
            self._step, self._step_began = plan.number, None
            self._outlet.deliver(plan.number, emissions)
            self._publish()
            if plan.rows or plan.orders:
                empty_wait = _EMPTY_STEP_WAIT
            else:
                self._nap(empty_wait)
                empty_wait = min(2 * empty_wait, _EMPTY_STEP_WAIT_MAX)
            if self._stopping:
                break
            self._take_inbox()
            plan = self._head.plan()
        self._publish()  # planning changes the tree, also when nothing comes of it
        return worked

    def _publish(self) -> None:
        """Tell routers what has changed in where pages are."""
        self._outlet.deliver_events(self._head.hierarchy.tree.log.drain())

    def _nap(self, seconds: float) -> None:
        """Wait between two empty plans, less long if something comes in."""
        with self._wake:
            if not self._inbox and not self._stopping:
                self._wake.wait(seconds)

    def _sleep(self) -> None:
        """Nothing to do: answer checks, then wait until something comes in."""
        while self._checks and self._idle():
            self._checks.popleft().set_result(idle_problems(self._head.hierarchy))
        with self._wake:
            if not (self._inbox or self._stopping or (self._checks and self._idle())):
                # Requests that wait for the store have a deadline, which somebody must look at.
                self._wake.wait(_LOOK_AT_DEADLINES if self._head.scheduler.waiting else None)

    def _idle(self) -> bool:
        return not self._inbox and not self._head.scheduler.waiting

    def _take_inbox(self) -> None:
        refused = []
        while self._inbox:
            match self._inbox.popleft():
                case RequestId() as id:
                    self._head.remove(id)
                case Found(id=id, stored=stored):
                    if self._head.seeker is not None:
                        self._head.seeker.answered(id, stored)
                case Called(work=work):
                    try:
                        work()
                    except Exception:
                        _log.exception("what was asked of the engine beside its requests failed")
                case Watched(client=client):
                    self._publish()
                    self._outlet.deliver_snapshot(client, self._head.hierarchy.holdings())
                case Request() as request if (failure := self._refusal()) is not None:
                    refused.append(Emission(request.id.client, Delta(id=request.id.id, failure=failure)))
                case Request() as request:
                    self._head.add(request)
        if refused:
            self._outlet.deliver(self._step, refused)

    def _refusal(self) -> Failure | None:
        if self._draining:
            return Failure(DRAINING, "the replica is shutting down; send the request again in a moment")
        if self._head.scheduler.full:
            return Failure(OVERLOADED, "the queue is full; try again later, or raise scheduler.max_waiting")
        return None
