"""Brings what only the store has to host memory while its request waits in the queue.

Per request: ask the store, off this thread, what it has of the pages that are not held; start a prefetch, or join
the one that is bringing them; let the request go when that is final, when the policy says so, or when the deadline
has passed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from stratakv.actors.worker.request import Request, RequestId
from stratakv.storage.hierarchy import Hierarchy
from stratakv.storage.policies.prefetch import PrefetchPolicy, PrefetchState, Verdict
from stratakv.storage.prefetch import Prefetch
from stratakv.storage.stores.settings import StoreSettings
from stratakv.storage.tiers import Miss, PageKey


class Lookup(Protocol):
    """Asks the store; see lookup.py."""

    def ask(self, keys: list[PageKey], answer: Callable[[int], None]) -> None:
        """Call `answer` with how many of `keys`, from the first on, can be restored; from any thread."""


@dataclass(slots=True)
class _Search:
    """One waiting request: `first` is the number of its first page that was not held when the search began."""

    request: Request
    first: int
    since: float
    prefetch: Prefetch | None = None


class StoreSeeker:
    """The searches of a head. `found` is how answers get back to its thread: it is called from the lookup's."""

    def __init__(
        self,
        settings: StoreSettings,
        policy: PrefetchPolicy,
        hierarchy: Hierarchy,
        lookup: Lookup,
        page_size: int,
        found: Callable[[RequestId, int], None],
        clock: Callable[[], float],
    ):
        self._settings = settings
        self._policy = policy
        self._hierarchy = hierarchy
        self._lookup = lookup
        self._found = found
        self._clock = clock
        self._minimum = -(-settings.prefetch_threshold // page_size)
        self._searches: dict[RequestId, _Search] = {}

    def __len__(self) -> int:
        return len(self._searches)

    def waits(self, request: Request) -> bool:
        """Whether `request` is still waiting for the store."""
        return request.id in self._searches

    def begin(self, request: Request) -> None:
        """Look for what is not held of `request`, if that is enough to be worth it."""
        self._begin(request, self._clock())

    def _begin(self, request: Request, since: float) -> None:
        keys = request.reusable_keys()
        first = self._hierarchy.tree.match(keys).held
        if len(keys) - first < self._minimum:
            return
        search = self._searches[request.id] = _Search(request, first, since)
        if not self._join(search, first):
            id = request.id
            self._lookup.ask(list(keys[first:]), lambda pages: self._found(id, pages))

    def answered(self, id: RequestId, pages: int) -> None:
        """The store has `pages` of what was asked for. Late answers are ignored."""
        search = self._searches.get(id)
        if search is None or search.prefetch is not None:
            return
        keys = search.request.reusable_keys()
        match = self._hierarchy.tree.match(keys)
        end = search.first + pages
        if end - match.held < self._minimum:
            self._let_go(search, match.held, end, Miss.BELOW_THRESHOLD)
            return
        if self._join(search, match.held):
            return
        namespace, wanted = search.request.namespace, keys[match.held : end]
        prefetch = self._hierarchy.prefetches.start(match.page, wanted, namespace, self._minimum)
        if prefetch is None:
            self._let_go(search, match.held, end, Miss.NO_STORE_ROOM)
            return
        search.first, search.prefetch = match.held, prefetch

    def update(self) -> None:
        """Let go the requests whose wait has ended. Call once a step, after the hierarchy has absorbed."""
        now = self._clock()
        for search in list(self._searches.values()):
            prefetch, waited = search.prefetch, now - search.since
            if prefetch is not None and prefetch.final:
                self._delivered(search, prefetch)
            elif waited > self._settings.deadline:
                self._give_up(search, Miss.DEADLINE)
            elif prefetch is not None:
                state = PrefetchState(len(prefetch.keys), prefetch.landed, waited)
                if self._policy.verdict(state) is Verdict.CUT:
                    self._give_up(search, Miss.CUT)

    def forget(self, id: RequestId) -> None:
        """The request was aborted. Its prefetch goes on: others may have joined it, and the pages will be wanted
        again."""
        self._searches.pop(id, None)

    def _join(self, search: _Search, page: int) -> bool:
        """Wait for the prefetch that has this page of the request in flight, if there is one."""
        key = search.request.reusable_keys()[page]
        found = self._hierarchy.prefetches.bringing(key)
        if found is None:
            return False
        search.first, search.prefetch = page - found.keys.index(key), found
        return True

    def _delivered(self, search: _Search, prefetch: Prefetch) -> None:
        request, first = search.request, search.first
        promised = first + self._shared(search, prefetch)
        landed = min(first + prefetch.landed, promised)
        if landed > first:
            request.fetched = range(request.fetched.start if request.fetched else first, landed)
        self._let_go(search, landed, promised, Miss.NOT_DELIVERED)
        if landed == promised:
            self._begin(request, search.since)  # a prefetch of another request may have had only part of ours

    def _give_up(self, search: _Search, reason: Miss) -> None:
        if search.prefetch is not None:
            self._hierarchy.prefetches.stop(search.prefetch)
            self._let_go(search, search.first, search.first + self._shared(search, search.prefetch), reason)
        else:
            self._let_go(search, search.first, len(search.request.reusable_keys()), reason)

    def _shared(self, search: _Search, prefetch: Prefetch) -> int:
        """How many pages of `prefetch` are pages of the request: it may have been started for another history."""
        keys = search.request.reusable_keys()[search.first :]
        pairs = zip(keys, prefetch.keys, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _let_go(self, search: _Search, first: int, end: int, reason: Miss) -> None:
        search.request.shortfall = dict.fromkeys(range(first, end), reason)
        del self._searches[search.request.id]
