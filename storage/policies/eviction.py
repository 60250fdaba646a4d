"""Which page leaves first when a pool is short. Asked by the page tree for pages that may leave at all."""

import math
from typing import NamedTuple, Protocol

from stratakv.storage.registry import Registry


class PageUse(NamedTuple):
    """What a policy may judge a page by.

    `last_use` is the tree's tick of its latest use, larger is later; `hits` counts the distinct requests that
    committed or reused it; `depth` is its distance from the root in pages; `priority` is the highest that a request
    which used it had, 0 unless clients say otherwise.
    """

    last_use: int
    hits: int
    depth: int
    priority: int = 0


class EvictionPolicy(Protocol):
    """Ranks pages; pure, so that the replay and the worker agree."""

    def rank(self, use: PageUse) -> float:
        """The page with the lowest rank leaves first. Must not fall when a page is used again; of two pages
        that were used alike the deeper must not rank lower."""


CAPACITY = 8192
"""Pages that a policy takes the memory to hold when it is not told."""

_CLASS = 2.0**40
"""More ticks than a replica lives to see: what differs by one class is never outweighed by recency."""


class EvictionFactory(Protocol):
    """Makes a policy for a memory that holds `capacity` pages, on device and host together."""

    def __call__(self, capacity: int = CAPACITY) -> EvictionPolicy:
        """The policy."""


EVICTION_POLICIES: Registry[EvictionFactory] = Registry("eviction policy", "cache.eviction_policy")


@EVICTION_POLICIES.register("lru")
class LeastRecentlyUsed:
    """The page that was not used for longest leaves first.

    Use it unless measurements say otherwise: conversations that go on stay, those that ended drain from their
    tail. A scan over many one-off prompts can push out a shared system prompt that is seldom used.
    """

    def __init__(self, capacity: int = CAPACITY):
        pass

    def rank(self, use: PageUse) -> float:
        """The tick of the latest use."""
        return float(use.last_use)


@EVICTION_POLICIES.register("lfu")
class LeastFrequentlyUsed:
    """The page that the fewest requests have used leaves first; of equals the one that was not used for longest.

    Use it when the same prompts stay popular for as long as the replica lives: a fixed set of documents or system
    prompts. What was popular once stays for good, so it suits no workload that moves on.
    """

    MOST = 2**13 - 1
    """Hits beyond these count no more: the rank is exact up to here."""

    def __init__(self, capacity: int = CAPACITY):
        pass

    def rank(self, use: PageUse) -> float:
        """Hits, then recency."""
        return min(use.hits, self.MOST) * _CLASS + use.last_use


@EVICTION_POLICIES.register("slru")
class SegmentedLeastRecentlyUsed:
    """Pages that only one request has used leave before all others, each kind in the order of its latest use.

    Use it when prompts that come once are mixed with histories that come back: a scan cannot push these out. Pages of
    a history's latest turn count as used once, so under it a replica with too little memory forgets ends first.
    """

    PROTECTED_HITS = 2

    def __init__(self, capacity: int = CAPACITY):
        pass

    def rank(self, use: PageUse) -> float:
        """Whether it is protected, then recency."""
        return (use.hits >= self.PROTECTED_HITS) * _CLASS + use.last_use


@EVICTION_POLICIES.register("priority")
class PriorityFirst:
    """The page with the lowest priority leaves first; of equals the one that was not used for longest.

    Use it when clients say what matters with the field `priority` of a request. Without that it is `lru`.
    """

    def __init__(self, capacity: int = CAPACITY):
        pass

    def rank(self, use: PageUse) -> float:
        """Priority, then recency."""
        return use.priority * _CLASS + use.last_use


@EVICTION_POLICIES.register("cost")
class ExpectedCost:
    """The page that saves the fewest seconds of computing, per byte and as far as can be expected, leaves first.

    Use it when histories of many lengths and prompts that come once share too little memory, or when the order of
    requests is cyclic, which `lru` serves worst of all.

    What a page saves is the rate at which it is wanted, times the time to compute it. Pages of one component have the
    same size, so bytes drop out. The rate is taken as `reuses * 2 ** (-age / half_life)`, with `reuses = hits - 1` and
    a sixty-fourth of one for a page that has had no reuse yet: that is what resists scans. `half_life` is the time in
    which the memory could be filled anew once, `capacity` ticks, since every new page is a tick; so what was popular
    leaves too when it is no longer wanted. The time is `a + b * depth`, a prefill's, in units of `a`: it doubles after
    `PAGES_TO_DOUBLE` pages. Since `age = now - last_use` and `now` is the same for all, the logarithm of the product
    orders pages the same at any time: it is a pure function of what the tree knows.
    """

    FIRST_USE = 1 / 64
    """Reuses that a page counts for which has had none."""
    PAGES_TO_DOUBLE = 512
    """a / b: attention over 32,768 tokens costs about what all the rest of a model of 8 billion parameters does."""

    def __init__(self, capacity: int = CAPACITY):
        self._half_life = float(max(1, capacity))

    def rank(self, use: PageUse) -> float:
        """log2 of reuses * seconds, plus the latest use in half-lives."""
        reuses = max(use.hits - 1, self.FIRST_USE)
        seconds = 1 + use.depth / self.PAGES_TO_DOUBLE
        return use.last_use / self._half_life + math.log2(reuses * seconds)
