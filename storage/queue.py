"""Who leaves next: the pages that may go, coldest first by the eviction policy. Used by the tree, once per kind of
leaving."""

import heapq
from collections.abc import Callable

_SLACK = 64  # stale heap entries tolerated before the heap is rebuilt


class LeavingQueue:
    """An exact set of pages with lazy ordering.

    Membership is kept exact by `set`; ranks may rise while a page is in (it was used again), which is noticed
    when the page comes up. A rank never falls while its page is in, so the order that `pop` gives is the true one.
    """

    def __init__(self, rank: Callable[[int], float]):
        self._rank = rank
        self._pushed: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._pushed)

    def __contains__(self, page: int) -> bool:
        return page in self._pushed

    def pages(self) -> set[int]:
        """A copy of the members, for checks."""
        return set(self._pushed)

    def set(self, page: int, eligible: bool) -> None:
        """Make `page` a member or not. O(log n) on entering, O(1) otherwise."""
        if not eligible:
            self._pushed.pop(page, None)
        elif page not in self._pushed:
            self._push(page)

    def coldest(self) -> int | None:
        """The member with the lowest rank, left in the queue; None when there is none."""
        while self._heap:
            rank, page = self._heap[0]
            if self._pushed.get(page) != rank:
                heapq.heappop(self._heap)
            elif self._rank(page) != rank:
                heapq.heappop(self._heap)
                self._push(page)
            else:
                return page
        return None

    def lowest(self) -> tuple[float, int] | None:
        """The first in line with its rank, which may have risen meanwhile; None when there is none."""
        while self._heap and self._pushed.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def _push(self, page: int) -> None:
        rank = self._rank(page)
        self._pushed[page] = rank
        heapq.heappush(self._heap, (rank, page))
        if len(self._heap) > 2 * len(self._pushed) + _SLACK:
            self._heap = [(r, p) for p, r in self._pushed.items()]
            heapq.heapify(self._heap)
