"""Writes to the store: a page goes down as soon as its host copy is committed, behind everybody's back.

Queued pages are held in host memory, so their number is capped; when it is reached the deepest go first, since a page
without the ones before it can never be used.
"""

import heapq
from collections.abc import Sequence

from stratakv.storage.columns import ROOT
from stratakv.storage.moves import WRITE_BATCH, WRITE_SLOTS, Area, Executor, Progress, Release, Write
from stratakv.storage.stamps import stamps
from stratakv.storage.tiers import Component, Tier
from stratakv.storage.tree import Hold, HoldKind, Tree


class StoreWrites:
    """The write-behind queue of a replica. `limit` is the most pages it may hold in host memory; 0
    turns it off."""

    def __init__(self, tree: Tree, executor: Executor, limit: int):
        self.written = 0
        self.failed = 0
        """Pages whose write was tried and did not succeed on every rank."""
        self.dropped = 0
        """Pages that were let go unwritten because the queue was full."""
        self._tree = tree
        self._executor = executor
        self._limit = limit
        self._free_slots = list(range(WRITE_SLOTS - 1, -1, -1))
        self._queued: dict[int, Hold] = {}
        self._deepest: list[tuple[int, int]] = []
        self._active: dict[int, list[Hold]] = {}
        self._busy: set[int] = set()

    @property
    def pending(self) -> int:
        """Pages queued or being written."""
        return len(self._queued) + sum(len(holds) for holds in self._active.values())

    @property
    def in_flight(self) -> int:
        """Batches being written."""
        return len(self._active)

    def saved(self, pages: Sequence[int]) -> None:
        """These pages, a stretch of one path, have a host copy: queue those that the store is not known to have.

        Pages above them that were let go earlier are queued again first, since a page is useless without them.
        """
        if not self._limit or not pages:
            return
        for page in [*self._unstored_above(pages[0]), *pages]:
            if self._wanted(page):
                self._queued[page] = self._tree.hold(page, HoldKind.HELD)
                heapq.heappush(self._deepest, (-self._tree.columns.depth[page], page))
        while self.pending > self._limit and self._queued:
            self._drop_deepest()

    def _wanted(self, page: int) -> bool:
        on_host = self._tree.slot(page, Tier.HOST) is not None
        return (
            on_host
            and not self._tree.columns.stored[page]
            and page not in self._busy
            and page not in self._queued
        )

    def _unstored_above(self, page: int) -> list[int]:
        above: list[int] = []
        while (page := self._tree.columns.parent[page]) != ROOT and self._wanted(page):
            above.append(page)
        return above[::-1]

    def absorb(self, progress: Progress) -> None:
        """Take in which batches have ended, and order the next ones."""
        for slot in list(self._active):
            state = progress.slot(Area.WRITE, slot)
            if state.drained:
                self._end(slot, state.done)
        while self._queued and self._free_slots:
            self._order()

    def _order(self) -> None:
        slot = self._free_slots.pop()
        pages = list(self._queued)[:WRITE_BATCH]
        self._active[slot] = [self._queued.pop(page) for page in pages]
        self._busy.update(pages)
        if not self._queued:
            self._deepest.clear()
        host_slots = tuple(self._host_slot(page) for page in pages)
        self._executor.submit(Write(slot, Component.FULL, host_slots, stamps(self._tree, pages)))

    def _end(self, slot: int, done: int) -> None:
        holds = self._active.pop(slot)
        self._busy.difference_update(hold.page for hold in holds)
        for position, hold in enumerate(holds):
            if position < done:
                self._tree.columns.stored[hold.page] = 1
            hold.release()
        self.written += done
        self.failed += len(holds) - done
        self._executor.submit(Release(Area.WRITE, slot))
        self._free_slots.append(slot)

    def _drop_deepest(self) -> None:
        while self._deepest:
            _, page = heapq.heappop(self._deepest)
            if page in self._queued:
                self._queued.pop(page).release()
                self.dropped += 1
                return

    def _host_slot(self, page: int) -> int:
        slot = self._tree.slot(page, Tier.HOST)
        assert slot is not None
        return slot
