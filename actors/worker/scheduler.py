"""Who computes what in the next step: continuous batching under a token budget, on top of the memory hierarchy.

Decoding requests go first with one token each; then prompts that are under way take chunks; then waiting requests are
admitted while budget and memory last. When a decoding request finds no room for its next page the youngest is
retracted: its committed pages stay cached, so coming back is cheap.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from stratakv.actors.settings import SchedulerSettings
from stratakv.actors.worker.request import Request, RequestId
from stratakv.storage.hierarchy import Asked, Hierarchy
from stratakv.storage.sides import Place

_PATIENCE = (
    256  # admissions of younger requests that a waiting one lets pass before the queue keeps its order
)


class Waiting(Protocol):
    """What the scheduler asks of, and tells, whoever brings pages for waiting requests; see seeker.py."""

    def waits(self, request: Request) -> bool:
        """Whether `request`, whose turn it is, is still waiting for the store, and so not to be admitted yet."""

    def forget(self, id: RequestId) -> None:
        """The request is admitted: what it needs is its own now."""

    def forget_kept(self) -> None:
        """Nothing that was brought may stand in the way of the next admission."""


class NoStore:
    """Nobody waits for anything."""

    def waits(self, request: Request) -> bool:
        """False."""
        return False

    def forget(self, id: RequestId) -> None:
        """Nothing to do."""

    def forget_kept(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True, slots=True)
class Work:
    """`tokens` tokens of `request`, from its first uncomputed one on, with sides at `place`. It samples when they reach
    its last one."""

    request: Request
    tokens: int
    place: Place

    @property
    def samples(self) -> bool:
        """Whether this is the last of the uncomputed tokens, so that the next token can be sampled."""
        return self.tokens == self.request.remaining


class Scheduler:
    """Waiting and running requests of one replica. Owned by the head's thread."""

    def __init__(
        self,
        settings: SchedulerSettings,
        hierarchy: Hierarchy,
        page_size: int,
        store: Waiting,
    ):
        self._store = store
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.retractions = 0
        self._settings = settings
        self._hierarchy = hierarchy
        self._page_size = page_size

    @property
    def full(self) -> bool:
        """Whether no further request may queue."""
        return len(self.waiting) >= self._settings.max_waiting

    def add(self, request: Request) -> None:
        """Queue a new request."""
        self.waiting.append(request)

    def remove(self, id: RequestId) -> None:
        """Forget a request and free what it holds; unknown ids are ignored."""
        for request in self.running:
            if request.id == id:
                self.finish(request)
                return
        for request in self.waiting:
            if request.id == id:
                self.waiting.remove(request)
                return

    def finish(self, request: Request) -> None:
        """A running request is done: its place is free, its full pages stay cached."""
        self.running.remove(request)
        self._hierarchy.release(request.stop())

    def schedule(self) -> list[Work]:
        """The work of the next step, at most `token_budget` tokens. Admits, retracts and takes pages as needed."""
        batch = [work for request in self._decoding() if (work := self._work(request, 1)) is not None]
        budget = self._settings.token_budget - len(batch)
        for request in self.running:
            if request.remaining > 1 and budget > 0 and (work := self._work(request, budget)) is not None:
                batch.append(work)
                budget -= work.tokens
        while budget > 0 and (admitted := self._admit_next()) is not None:
            if (work := self._work(admitted, budget)) is not None:
                batch.append(work)
                budget -= work.tokens
        # Last, so that it takes no room from those who are admitted now: what it saves is free in later steps.
        self._hierarchy.run_ahead(2 * (len(self.running) + self._settings.token_budget // self._page_size))
        return batch

    def _work(self, request: Request, budget: int) -> Work | None:
        """What `request` computes in this step, up to where a checkpoint is to be taken. None when there is no room for
        its sides until copies in flight have ended."""
        assert request.lease is not None
        count = min(request.remaining, budget)
        stop = self._hierarchy.next_stop(request.lease, request.span(count).start)
        if stop is not None:
            count = min(count, request.tokens_to(stop))
        span = request.span(count)
        place = self._hierarchy.prepare(request.lease, span.start, span.stop)
        return Work(request, count, place) if place is not None else None

    def _decoding(self) -> list[Request]:
        """Running requests with one token to go that have a page for it, oldest first."""
        candidates = [request for request in self.running if request.remaining == 1]
        ready = [request for request in candidates if request.lease is not None and self._has_page(request)]
        return [request for request in ready if request.lease is not None]

    def _has_page(self, request: Request) -> bool:
        """Make sure the page of the next token exists, at the cost of the youngest. False when the request was itself
        the youngest, or must sit this step out until copies in flight have ended."""
        assert request.lease is not None
        if request.pages <= len(request.lease.slots) or self._hierarchy.grow(request.lease):
            return True
        while len(self.running) > 1:
            self._retract(self.running[-1])
            if request.lease is None:
                return False
            if self._hierarchy.grow(request.lease) or self._grow_by_dropping(request):
                return True
        return self._grow_by_dropping(request)

    def _grow_by_dropping(self, request: Request) -> bool:
        """By cold pages that were never saved, and where those are too few, by its own checkpoints."""
        lease, hierarchy = request.lease, self._hierarchy
        assert lease is not None
        if hierarchy.room.reclaim(1) or (hierarchy.shed(lease) and hierarchy.room.reclaim(1)):
            return hierarchy.grow(lease)
        return False

    def _retract(self, request: Request) -> None:
        self.running.remove(request)
        self._hierarchy.release(request.stop())
        self.waiting.appendleft(request)
        self.retractions += 1

    def _admit_next(self) -> Request | None:
        """Admit the oldest waiting request that fits, unless one before it has let too many pass."""
        if len(self.running) >= self._settings.max_running:
            return None
        for position, request in enumerate(self.waiting):
            if self._store.waits(request):
                continue
            if self._admit(request):
                del self.waiting[position]
                for passed in list(self.waiting)[:position]:
                    passed.overtaken += 1
                return request
            if request.overtaken >= _PATIENCE:
                break
        return self._admit_last_resort()

    def _admit_last_resort(self) -> Request | None:
        """With nothing running and nothing in flight, nobody will make room any more: drop what was never saved."""
        if self.running or self._hierarchy.in_flight:
            return None
        oldest = next((request for request in self.waiting if not self._store.waits(request)), None)
        if oldest is None:
            return None
        if not self._hierarchy.room.reclaim(oldest.pages):
            self._store.forget_kept()
            self._hierarchy.room.reclaim(oldest.pages)
        if not self._admit(oldest):
            return None
        self.waiting.remove(oldest)
        return oldest

    def _admit(self, request: Request) -> bool:
        """Give `request` all pages of its tokens, and leave one for each that runs, or change nothing."""
        asked = Asked(request.namespace, len(self.running), request.counted, request.priority, request.known)
        admission = self._hierarchy.admit(request.reusable_keys(), request.pages, asked)
        if admission is None:
            return False
        request.start(admission)
        self._store.forget(request.id)
        self.running.append(request)
        return True
