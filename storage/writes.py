"""Writes to the store: a page goes down as soon as its host copy is committed, behind everybody's back.

Queued blocks are held in host memory, so their number is capped; when it is reached the deepest go first, since a page
without the ones before it can never be used.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from stratakv.storage.columns import ROOT
from stratakv.storage.holds import Hold, HoldKind
from stratakv.storage.moves import WRITE_BATCH, WRITE_SLOTS, Area, Executor, Part, Progress, Release, Write
from stratakv.storage.side import Side
from stratakv.storage.stamps import stamps
from stratakv.storage.tiers import Component, Tier
from stratakv.storage.tree import Tree


class _Block(NamedTuple):
    """What is written: one component of one page."""

    component: Component
    page: int


class StoreWrites:
    """The write-behind queue of a replica. `limit` is the most blocks it may hold in host memory; 0 turns it off."""

    def __init__(self, tree: Tree, executor: Executor, limit: int):
        self.sides: dict[Component, Side] = {}
        """Filled in by the hierarchy."""
        self.written = 0
        self.failed = 0
        """Blocks whose write was tried and did not succeed on every rank."""
        self.dropped = 0
        """Blocks that were let go unwritten because the queue was full."""
        self._tree = tree
        self._executor = executor
        self._limit = limit
        self._free_slots = list(range(WRITE_SLOTS - 1, -1, -1))
        self._queued: dict[_Block, Hold] = {}
        self._deepest: list[tuple[int, _Block]] = []
        self._active: dict[int, dict[_Block, Hold]] = {}
        self._busy: set[_Block] = set()
        self._unwritten: set[_Block] = set()
        """Sides that were let go or failed. They are queued again when the store has taken something."""

    @property
    def pending(self) -> int:
        """Blocks queued or being written."""
        return len(self._queued) + len(self._busy)

    def pending_of(self, component: Component) -> int:
        """Blocks of one component that are queued or being written."""
        blocks = [*self._queued, *(block for active in self._active.values() for block in active)]
        return sum(block.component is component for block in blocks)

    @property
    def in_flight(self) -> int:
        """Batches being written."""
        return len(self._active)

    def saved(self, pages: Sequence[int]) -> None:
        """These pages, a stretch of one path, have a host copy: queue those that the store is not known to have.

        Pages above them that were let go earlier are queued again first, since a page is useless without them; and
        after them those below that waited for them, since a page without its parent is refused.
        """
        if pages and self._limit:
            chosen = [*self._unstored_above(pages[0]), *pages]
            below = chosen[-1:]
            for page in below:
                below += [child for child in self._tree.columns.children(page) if self._is_saved(child)]
            self._queue([_Block(Component.FULL, page) for page in [*chosen, *below[1:]]])

    def side_saved(self, side: Side, pages: Sequence[int]) -> None:
        """The sides of these pages have a host copy."""
        self._queue([_Block(side.component, page) for page in pages])

    def absorb(self, progress: Progress) -> None:
        """Take in which batches have ended, and order the next ones."""
        for slot in list(self._active):
            state = progress.slot(Area.WRITE, slot)
            if state.drained:
                self._end(slot, state.done)
        while self._queued and self._free_slots:
            self._order()

    def _queue(self, blocks: Sequence[_Block]) -> None:
        if not self._limit:
            return
        for block in blocks:
            if self._wanted(block):
                self._queued[block] = self._hold(block)
                heapq.heappush(self._deepest, (-self._tree.columns.depth[block.page], block))
        while self.pending > self._limit and self._queued:
            self._drop_deepest()

    def _wanted(self, block: _Block) -> bool:
        if block in self._busy or block in self._queued:
            return False
        if block.component is Component.FULL:
            return self._is_saved(block.page) and self._follows(self._tree.columns.parent[block.page])
        side = self.sides[block.component]
        return block.page in side.host.slots and block.page not in side.stored

    def _is_saved(self, page: int) -> bool:
        """Whether `page` has a host copy that the store is not known to have."""
        return self._tree.slot(page, Tier.HOST) is not None and not self._tree.columns.stored[page]

    def _follows(self, parent: int) -> bool:
        """Whether a child of `parent` may be written: the store has it, or will have had it by then."""
        block = _Block(Component.FULL, parent)
        return (
            parent == ROOT
            or self._tree.columns.stored[parent] > 0
            or block in self._queued
            or block in self._busy
        )

    def _host_slot(self, block: _Block) -> int | None:
        if block.component is Component.FULL:
            return self._tree.slot(block.page, Tier.HOST)
        return self.sides[block.component].host.slots.get(block.page)

    def _hold(self, block: _Block) -> Hold:
        if block.component is not Component.FULL:
            self.sides[block.component].guard(block.page, Tier.HOST)
        return self._tree.hold(block.page, HoldKind.HELD)

    def _let_go(self, block: _Block, hold: Hold) -> None:
        if block.component is not Component.FULL:
            self.sides[block.component].unguard(block.page, Tier.HOST)
        hold.release()

    def _unstored_above(self, page: int) -> list[int]:
        above: list[int] = []
        while (page := self._tree.columns.parent[page]) != ROOT and self._is_saved(page):
            above.append(page)
        return above[::-1]

    def _order(self) -> None:
        slot = self._free_slots.pop()
        chosen = list(self._queued)[:WRITE_BATCH]
        # One part per component. The sort is stable, so that parents stay before their children.
        blocks = sorted(chosen, key=lambda block: list(Component).index(block.component))
        self._active[slot] = {block: self._queued.pop(block) for block in blocks}
        self._busy.update(blocks)
        if not self._queued:
            self._deepest.clear()
        parts = []
        for component in dict.fromkeys(block.component for block in blocks):
            part = [block for block in blocks if block.component is component]
            host = tuple(place for block in part if (place := self._host_slot(block)) is not None)
            assert len(host) == len(part)
            parts.append(Part(component, host, stamps(self._tree, [block.page for block in part])))
        self._executor.submit(Write(slot, tuple(parts)))

    def _end(self, slot: int, done: int) -> None:
        blocks = self._active.pop(slot)
        self._busy.difference_update(blocks)
        for position, (block, hold) in enumerate(blocks.items()):
            if position < done:
                self._note_stored(block)
            elif position == done:
                self._doubt(block.page)
            self._let_go(block, hold)
        if done:
            again, self._unwritten = self._unwritten, set()
            self._queue(list(again))
        self._unwritten.update(
            block for block in list(blocks)[done:] if block.component is not Component.FULL
        )
        self.written += done
        self.failed += len(blocks) - done
        self._executor.submit(Release(Area.WRITE, slot))
        self._free_slots.append(slot)

    def _note_stored(self, block: _Block) -> None:
        if block.component is Component.FULL:
            self._tree.columns.stored[block.page] = 1
        else:
            self.sides[block.component].stored.add(block.page)

    def _doubt(self, page: int) -> None:
        """A write failed, perhaps because the store has let go of a page before it: those are written again before the
        next page of this history. What is there already is not written twice."""
        while (page := self._tree.columns.parent[page]) != ROOT:
            self._tree.columns.stored[page] = 0

    def _drop_deepest(self) -> None:
        while self._deepest:
            _, block = heapq.heappop(self._deepest)
            if block in self._queued:
                self._let_go(block, self._queued.pop(block))
                self.dropped += 1
                if block.component is not Component.FULL:
                    self._unwritten.add(block)
                return
