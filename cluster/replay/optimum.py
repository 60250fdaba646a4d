"""The offline optimum: what a cache of a given size would serve at best, if it knew the future."""

import heapq
from collections.abc import Sequence

from stratakv.cluster.replay.request import ReplayRequest
from stratakv.storage.tiers import PageKey

_NEVER = 1 << 62


def best_hit_tokens(requests: Sequence[ReplayRequest], pages: int, page_size: int) -> int:
    """The prompt tokens that a single cache of `pages` pages serves under Belady's rule.

    The page whose next use lies furthest in the future goes first, a page just computed included, so that what never
    comes back takes no room. Pages of one request are looked at one after the other and none is pinned: the request
    itself needs no room. A page is wanted no later than the pages after it, and of equals the deepest goes first; so
    ends of histories go before their beginnings, what is kept of a history is a prefix of it, and the rule, which is
    optimal over all sets of pages, is so over prefix-closed ones. No policy of the same size can serve more.
    """
    next_uses = _next_uses(requests, page_size)
    wanted: dict[PageKey, int] = {}
    heap: list[tuple[int, int, PageKey]] = []
    hits = 0
    for number, request in enumerate(requests):
        usable = (request.prompt_tokens - 1) // page_size
        for depth, key in enumerate(request.keys):
            hits += depth < usable and key in wanted
            upcoming = next_uses[number][depth]
            wanted.pop(key, None)
            if upcoming < _NEVER:
                wanted[key] = upcoming
                heapq.heappush(heap, (-upcoming, -depth, key))
            while len(wanted) > pages:
                use, _, furthest = heapq.heappop(heap)
                if wanted.get(furthest) == -use:
                    del wanted[furthest]
    return hits * page_size


def _next_uses(requests: Sequence[ReplayRequest], page_size: int) -> list[list[int]]:
    """For each page of each request, the number of the next request that could be served it."""
    upcoming: dict[PageKey, int] = {}
    uses: list[list[int]] = []
    for number in range(len(requests) - 1, -1, -1):
        request = requests[number]
        usable = (request.prompt_tokens - 1) // page_size
        uses.append([upcoming.get(key, _NEVER) for key in request.keys])
        upcoming.update(dict.fromkeys(request.keys[:usable], number))
    uses.reverse()
    return uses
