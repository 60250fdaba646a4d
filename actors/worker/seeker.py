"""Brings what only the store has to host memory while its request waits in the queue.

Per request: ask the store, off this thread, what it has of the pages that are not held; start a prefetch, or join
the one that is bringing them; let the request go when that is final. When the policy says so, or when the deadline
has passed, the prefetch is cut: it is final as soon as the reads under way have ended, and what has landed is used.

Host memory for this is bounded. Requests that find no room queue for it, in the order in which they came, and what was
brought stays until their turn to compute; a request whose turn comes first is asked for its patience like any other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

from stratakv.actors.worker.request import Request, RequestId
from stratakv.storage.hierarchy import Hierarchy
from stratakv.storage.policies.prefetch import PrefetchPolicy, PrefetchState, Verdict
from stratakv.storage.prefetch import Prefetch
from stratakv.storage.rates import LandingRate, PrefillRate
from stratakv.storage.stores.settings import StoreSettings
from stratakv.storage.tiers import Component, Miss, PageKey
from stratakv.storage.wanted import Stored, choose, first_unknown


class Lookup(Protocol):
    """Asks the store; see lookup.py."""

    def ask(
        self, keys: Sequence[PageKey], first: Mapping[Component, int], answer: Callable[[Stored], None]
    ) -> None:
        """Call `answer` with which of `keys` the store has, from page `first` of each component on; from any thread."""


_GRACE = (
    0.1  # of the deadline, that a cut read may take to end before the request goes without what it landed
)
_LOOK_UP = (
    0.1  # seconds that the store may take to say what it has, before the policy is asked how long to wait
)


@dataclass(slots=True)
class _Search:
    """One waiting request since `since`. It waits for `prefetch`, which began at `began`, whose first page landed at
    `first_landed`, and which is to give it the pages up to number `promised`. `held_up` is when it could first have
    run. `asked` is from which pages on the store was asked, `stored` what it answered, and `wanted` the pages it asks
    for while they find no room. `own` says that the prefetch was started for this request."""

    request: Request
    since: float
    asked: Mapping[Component, int] = field(default_factory=dict)
    stored: Stored | None = None
    wanted: int = 0
    own: bool = False
    prefetch: Prefetch | None = None
    promised: int = 0
    began: float = 0.0
    first_landed: float | None = None
    held_up: float | None = None
    given_up: float | None = None
    reason: Miss = Miss.NOT_DELIVERED


class StoreSeeker:
    """The searches of a head. `found` is how answers get back to its thread: it is called from the lookup's."""

    def __init__(
        self,
        settings: StoreSettings,
        policy: PrefetchPolicy,
        hierarchy: Hierarchy,
        lookup: Lookup,
        page_size: int,
        found: Callable[[RequestId, Stored], None],
        clock: Callable[[], float],
    ):
        self.prefill = PrefillRate()
        """What computing costs here, for the policy; the head notes what it sees."""
        self._landing = LandingRate()
        self._settings = settings
        self._policy = policy
        self._hierarchy = hierarchy
        self._lookup = lookup
        self._found = found
        self._clock = clock
        self._page_size = page_size
        self._minimum = -(-settings.prefetch_threshold // page_size)
        self._searches: dict[RequestId, _Search] = {}
        self._claims: dict[RequestId, Prefetch] = {}
        """The prefetch that a waiting request waits for, or that has brought what it will use."""
        self._had: dict[RequestId, int] = {}
        """Pages that were here of a waiting request when it was last looked for."""

    def __len__(self) -> int:
        return len(self._searches)

    def waits(self, request: Request) -> bool:
        """Whether `request`, whose turn it is, is still waiting for the store. Its time begins at the first look. If
        much of what was here has left while it waited, that is looked for once more."""
        search = self._searches.get(request.id)
        if search is None and self._has_lost(request):
            del self._had[request.id]  # once is enough
            self._begin(_Search(request, self._clock()))
            search = self._searches.get(request.id)
        if search is not None and search.held_up is None:
            search.held_up = self._clock()
        return search is not None

    def begin(self, request: Request) -> None:
        """Look for what is not held of `request`, if that is enough to be worth it."""
        self._had[request.id] = self._hierarchy.find(request.reusable_keys()).held
        self._begin(_Search(request, self._clock()))

    def _has_lost(self, request: Request) -> bool:
        """Whether so many pages fewer are here than there were that it is worth to look for them."""
        had = self._had.get(request.id, 0)
        return (
            had >= self._minimum and had - self._hierarchy.find(request.reusable_keys()).held >= self._minimum
        )

    def _begin(self, search: _Search) -> None:
        keys = search.request.reusable_keys()
        found = self._hierarchy.find(keys)
        if len(keys) - found.held < self._minimum:
            return
        self._searches[search.request.id] = search
        if found.full < len(keys) and self._join(search, Component.FULL, found.full):
            return
        self._ask(search, keys, first_unknown(self._hierarchy, keys))

    def _ask(self, search: _Search, keys: Sequence[PageKey], firsts: Mapping[Component, int]) -> None:
        id = search.request.id
        search.asked, search.stored = firsts, None
        self._lookup.ask(list(keys), firsts, lambda stored: self._found(id, stored))

    def answered(self, id: RequestId, stored: Stored) -> None:
        """The store has told what it has. Late answers are ignored."""
        search = self._searches.get(id)
        if search is None or search.prefetch is not None:
            return
        search.stored = stored
        self._start_in_order()

    def _start_in_order(self) -> None:
        """Start what the store has answered, up to the first that finds no room."""
        for search in list(self._searches.values()):
            if (
                search.prefetch is None
                and search.stored is not None
                and not self._start(search, search.stored)
            ):
                return

    def _start(self, search: _Search, stored: Stored) -> bool:
        """Read what is `stored` of the request, or join who does, or let it go. False when it must queue for room."""
        request, prefetches = search.request, self._hierarchy.prefetches
        keys = request.reusable_keys()
        firsts = first_unknown(self._hierarchy, keys)
        if any(firsts[component] < first for component, first in search.asked.items()):
            self._ask(search, keys, firsts)  # pages have left that it was not asked about
            return True
        wanted = choose(self._hierarchy, keys, request.namespace, stored, self._minimum)
        stretch, held = wanted.stretch, wanted.found.held
        request.known = max(request.known, wanted.known)
        if stretch is None:
            self._let_go(search, held, wanted.promised, wanted.reason)
            return True
        if stretch.first < stretch.end and self._join(search, Component.FULL, stretch.first):
            return True
        if any(self._join(search, c, number) for c, numbers in stretch.sides.items() for number in numbers):
            return True
        search.wanted = stretch.end - stretch.first
        if request.id not in self._claims and prefetches.crowded(search.wanted):
            return False
        # Before its turn, what is in flight may end and make room for all of it.
        patient = search.held_up is None and self._hierarchy.in_flight > 0
        least = search.wanted if patient else self._minimum
        prefetch = prefetches.start(wanted.anchor, stretch, least, self._claims.get(request.id))
        if prefetch is None and patient:
            return False
        if prefetch is None:
            self._let_go(search, held, wanted.promised, Miss.NO_STORE_ROOM)
            return True
        fitting = wanted.promised - (search.wanted - len(prefetch.keys))
        beyond = range(fitting, wanted.promised)
        request.shortfall.update(dict.fromkeys(beyond, Miss.NO_STORE_ROOM))
        self._await(search, prefetch, fitting, self._clock())
        search.own = True
        return True

    def update(self) -> None:
        """Let go the requests whose wait has ended. Call once a step, after the hierarchy has absorbed."""
        now = self._clock()
        self._start_in_order()
        for search in list(self._searches.values()):
            prefetch = search.prefetch
            if prefetch is None:
                self._without(search, now)
                continue
            if prefetch.done and search.first_landed is None:
                search.first_landed = now
            if prefetch.final or self._is_lost(search, now):
                self._delivered(search, prefetch, now)
            elif self._is_late(search, search.began, now):
                self._cut(search, prefetch, Miss.DEADLINE, now)
            elif self._is_too_dear(search, prefetch, now):
                self._cut(search, prefetch, Miss.CUT, now)

    def forget(self, id: RequestId) -> None:
        """The request runs now, or was aborted. Its prefetch goes on: others may have joined it, and the pages will be
        wanted again."""
        self._searches.pop(id, None)
        self._had.pop(id, None)
        self._unclaim(id)

    def forget_kept(self) -> None:
        """Memory is so short that what was brought for waiting requests must not stand in the way any more."""
        for id in list(self._claims):
            if id not in self._searches:
                self._unclaim(id)

    def _unclaim(self, id: RequestId) -> None:
        prefetch = self._claims.pop(id, None)
        if prefetch is not None:
            self._hierarchy.prefetches.let_go(prefetch)

    def _without(self, search: _Search, now: float) -> None:
        """Let a request go that waits for the store's answer, or for room, when that takes too long."""
        keys = search.request.reusable_keys()
        if search.stored is None:
            if self._is_late(search, search.since, now):
                self._let_go(search, self._hierarchy.find(keys).held, len(keys), Miss.DEADLINE)
            elif now - search.since > _LOOK_UP and self._is_too_dear(search, None, now):
                self._let_go(search, self._hierarchy.find(keys).held, len(keys), Miss.CUT)
        elif self._is_late(search, now, now) or self._is_too_dear(search, None, now):
            held = self._hierarchy.find(keys).held
            self._let_go(search, held, held + search.wanted, Miss.NO_STORE_ROOM)

    def _is_late(self, search: _Search, since: float, now: float) -> bool:
        """Whether the deadline has passed for what goes on `since` then, or for a request that could have run."""
        held_up = search.held_up if search.held_up is not None else now
        return now - min(since, held_up) > self._settings.deadline

    def _await(self, search: _Search, prefetch: Prefetch, promised: int, began: float) -> None:
        self._claims[search.request.id] = prefetch
        search.prefetch, search.promised = prefetch, promised
        search.began, search.first_landed, search.own = began, None, False

    def _join(self, search: _Search, component: Component, page: int) -> bool:
        """Wait for the prefetch that has this page of the request in flight, if there is one."""
        keys = search.request.reusable_keys()
        found = self._hierarchy.prefetches.bringing(keys[page], component)
        if found is None:
            return False
        self._unclaim(search.request.id)
        self._hierarchy.prefetches.join(found)
        others = (other.began for other in self._searches.values() if other.prefetch is found)
        began = min(others, default=self._clock())
        self._await(search, found, found.stretch.first + _shared(keys, found), began)
        return True

    def _is_too_dear(self, search: _Search, prefetch: Prefetch | None, now: float) -> bool:
        """Whether the policy says so; it is not asked before the request could run."""
        if search.held_up is None or search.given_up is not None:
            return False
        state = self._state(search, prefetch, now) if prefetch is not None else self._queued(search, now)
        return self._policy.verdict(state) is Verdict.CUT

    def _queued(self, search: _Search, now: float) -> PrefetchState:
        """What the policy is told of a request that finds no room to read, after what is being read; or whose look-up
        has not been answered, and is expected to take as long again."""
        keys = search.request.reusable_keys()
        held = self._hierarchy.find(keys).held
        to_land: float | None = now - search.since
        if search.stored is None:
            pages = len(keys) - held
        else:
            pages = search.wanted
            ahead = sum(
                len(prefetch.keys) - prefetch.landed for prefetch in self._hierarchy.prefetches.active
            )
            to_land = self._landing.predict(ahead + pages)
        tokens = pages * self._page_size
        return PrefetchState(
            pages=pages,
            landed=0,
            waited=self._waited(search, now),
            tokens=tokens,
            to_land=to_land,
            to_compute=self.prefill.predict(held * self._page_size, tokens),
        )

    def _waited(self, search: _Search, now: float) -> float:
        return now - (search.held_up if search.held_up is not None else now)

    def _state(self, search: _Search, prefetch: Prefetch, now: float) -> PrefetchState:
        """What the policy is told. Computing the rest begins where the request could go on after a cut."""
        held = self._hierarchy.find(search.request.reusable_keys()).held
        usable = held if self._hierarchy.sides.all else max(held, prefetch.stretch.first + prefetch.landed)
        rest = max(0, search.promised - usable) * self._page_size
        blocks, done = prefetch.side_blocks + len(prefetch.keys), prefetch.done
        return PrefetchState(
            pages=blocks,
            landed=done,
            waited=self._waited(search, now),
            tokens=len(prefetch.keys) * self._page_size,
            to_land=self._landing.predict(blocks - done, done, now - search.began),
            to_compute=self.prefill.predict(usable * self._page_size, rest),
        )

    def _delivered(self, search: _Search, prefetch: Prefetch, now: float) -> None:
        request, first = search.request, prefetch.stretch.first
        if search.own and prefetch.done:
            landed_at = search.first_landed if search.first_landed is not None else now
            self._landing.note(prefetch.done, now - search.began, landed_at - search.began)
        elif search.own and prefetch.cut:
            self._landing.doubt()
        keys = request.reusable_keys()
        landed = first + min(prefetch.landed, _shared(keys, prefetch))
        if landed > first and prefetch.final:
            request.fetched = range(request.fetched.start if request.fetched else first, landed)
        held = self._hierarchy.find(keys).held
        if request.id in self._had:
            self._had[request.id] = held
        cut_by_another = prefetch.cut and search.reason is Miss.NOT_DELIVERED
        self._let_go(search, held, search.promised, Miss.CUT if cut_by_another else search.reason)
        if prefetch.complete and held >= search.promised:
            # A prefetch of another request may have had only part of ours.
            self._begin(_Search(request, now, held_up=search.held_up))

    def _cut(self, search: _Search, prefetch: Prefetch, reason: Miss, now: float) -> None:
        if search.given_up is None:
            search.given_up, search.reason = now, reason
            self._hierarchy.prefetches.stop(prefetch)

    def _is_lost(self, search: _Search, now: float) -> bool:
        """Whether a read that was cut hangs, so that there is no use in waiting for what it landed."""
        return search.given_up is not None and now - search.given_up > _GRACE * self._settings.deadline

    def _let_go(self, search: _Search, first: int, end: int, reason: Miss) -> None:
        search.request.shortfall.update(dict.fromkeys(range(first, end), reason))
        del self._searches[search.request.id]


def _shared(keys: Sequence[PageKey], prefetch: Prefetch) -> int:
    """How many full pages of `prefetch` are pages of the history `keys`: it may have been started for another."""
    pairs = zip(keys[prefetch.stretch.first :], prefetch.keys, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
