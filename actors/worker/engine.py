"""The engine: one thread that plans, executes and takes in steps while there is work, and sleeps while there is none.

Requests come in from the endpoint's thread and wait in an inbox; only the engine's thread touches the head. What a step
emitted goes out in one call.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from stratakv.actors.worker.config import Heartbeat
from stratakv.actors.worker.endpoint import Emission, Load
from stratakv.actors.worker.head import Head
from stratakv.actors.worker.rank import Rank
from stratakv.actors.worker.request import Request, RequestId
from stratakv.cluster.messages import Delta, Failure, Generate, unpack_tokens
from stratakv.storage.hierarchy_check import idle_problems
from stratakv.storage.tiers import PageKey

_log = logging.getLogger(__name__)

_EMPTY_STEP_WAIT = 0.002  # seconds between empty plans at first, doubled up to:
_EMPTY_STEP_WAIT_MAX = 0.020

OVERLOADED = "overloaded"
"""Failure code of a request that found the queue full."""
DRAINING = "draining"
"""Failure code of a request that came while the replica was shutting down, or was still there when it ended."""

Emit = Callable[[int, Sequence[Emission]], None]


class Engine:
    """Runs a head and its rank. `emit(step, emissions)` is called from the engine's thread after each step.

    `submit`, `abort`, `load`, `heartbeat` and `idle_check` may be called from any thread.
    """

    def __init__(self, head: Head, rank: Rank, page_size: int, emit: Emit):
        self._head = head
        self._rank = rank
        self._page_size = page_size
        self._emit = emit
        self._inbox: deque[Request | RequestId] = deque()
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
        """What is wrong with the slots and holds of an idle replica; waits up to `deadline` seconds for it to be idle."""
        check: Future[list[str]] = Future()
        with self._wake:
            self._checks.append(check)
            self._wake.notify()
        try:
            return check.result(deadline)
        except TimeoutError:
            running, waiting = self.load()
            return [f"not idle after {deadline:g} s: {running} requests run, {waiting} wait"]

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def drain(self, deadline: float) -> None:
        """Refuse new requests and wait up to `deadline` seconds until none is left."""
        with self._wake:
            self._draining = True
        until = time.monotonic() + deadline
        while time.monotonic() < until and self._thread.is_alive() and sum(self.load()):
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

    def _post(self, item: Request | RequestId) -> None:
        with self._wake:
            self._inbox.append(item)
            self._wake.notify()

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                if not self._work():
                    self._sleep()
            self._emit(self._step, self._head.abort_all(Failure(DRAINING, "the replica is shutting down; send it again")))
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
            if emissions:
                self._emit(plan.number, emissions)
            if plan.rows or plan.orders:
                empty_wait = _EMPTY_STEP_WAIT
            else:
                empty_wait = min(2 * self._nap(empty_wait), _EMPTY_STEP_WAIT_MAX)
            if self._stopping:
                break
            self._take_inbox()
            plan = self._head.plan()
        return worked

    def _nap(self, seconds: float) -> float:
        """Wait between two empty plans, less long if something comes in. Returns `seconds`."""
        with self._wake:
            if not self._inbox and not self._stopping:
                self._wake.wait(seconds)
        return seconds

    def _sleep(self) -> None:
        """Nothing to do: answer checks, then wait until something comes in."""
        while self._checks:
            self._checks.popleft().set_result(idle_problems(self._head.hierarchy))
        with self._wake:
            if not (self._inbox or self._checks or self._stopping):
                self._wake.wait()

    def _take_inbox(self) -> None:
        refused = []
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, RequestId):
                self._head.scheduler.remove(item)
            elif (failure := self._refusal()) is not None:
                refused.append(Emission(item.id.client, Delta(id=item.id.id, failure=failure)))
            else:
                self._head.scheduler.add(item)
        if refused:
            self._emit(self._step, refused)

    def _refusal(self) -> Failure | None:
        if self._draining:
            return Failure(DRAINING, "the replica is shutting down; send the request again in a moment")
        if self._head.scheduler.full:
            return Failure(OVERLOADED, "the queue is full; try again later, or raise scheduler.max_waiting")
        return None
