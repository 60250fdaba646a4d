"""Which page leaves first when a pool is short. Asked by the page tree for pages that may leave at all."""

from collections.abc import Callable
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
        """The page with the lowest rank leaves first. Must not fall when a page is used again."""


EVICTION_POLICIES: Registry[Callable[[], EvictionPolicy]] = Registry(
    "eviction policy", "cache.eviction_policy"
)


@EVICTION_POLICIES.register("lru")
class LeastRecentlyUsed:
    """The page that was not used for longest leaves first.

    Use it unless measurements say otherwise: conversations that go on stay, those that ended drain from their
    tail. A scan over many one-off prompts can push out a shared system prompt that is seldom used.
    """

    def rank(self, use: PageUse) -> float:
        """The tick of the latest use."""
        return float(use.last_use)
