"""The sliding component of running requests: each keeps slots for its window and the chunk it computes, and no more.

Slots that the window has passed are free again and their page stays in the tree as a tombstone. Where a history may be
taken up again, at a mark, the window before it goes into the tree for others; the request keeps on reading it there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from stratakv.storage.copies import Copies, Operation
from stratakv.storage.holds import HoldKind
from stratakv.storage.moves import Direction
from stratakv.storage.pools import Owner
from stratakv.storage.side_copies import SideCopies
from stratakv.storage.tiers import Tier
from stratakv.storage.tree import Tree


@dataclass(eq=False, slots=True)
class WindowLease:
    """Slots of a request's pages from number `first` on. `shared` are those, by number, that belong to a page of the
    tree, which is kept; the others are the request's own. It never has more than `quota`."""

    quota: int
    first: int
    slots: list[int] = field(default_factory=list)
    shared: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The number of the page after the last that has a slot."""
        return self.first + len(self.slots)


class Windows:
    """Gives requests their sliding slots. `chunk_pages` is the most pages that one step of a request may touch."""

    def __init__(self, tree: Tree, moves: SideCopies, copies: Copies, chunk_pages: int):
        self.moves = moves
        self.side = moves.side
        self.reach = self.side.policy.pages
        """Pages before a boundary that a token at it may see."""
        self.leases: set[WindowLease] = set()
        self._tree = tree
        self._copies = copies
        self._chunk_pages = chunk_pages
        self._promised = 0
        self._arriving: dict[int, int] = {}

    @property
    def quota(self) -> int:
        """The most slots that one request takes."""
        return self.reach + self._chunk_pages + 2

    @property
    def arriving(self) -> int:
        """Window pages on their way to the device."""
        return len(self._arriving)

    def fits(self, path: Sequence[int]) -> bool:
        """Whether a request that goes on after `path` can have its slots: its quota for good, and its window now."""
        if self._promised + self.quota > self.side.device.book.capacity:
            return False
        window = path[-self.reach :]
        lacking = sum(page not in self.side.device.slots and page not in self._arriving for page in window)
        kept = sum(page in self.side.device.slots and page not in self.side.device.guards for page in window)
        return self.side.device.room - kept >= lacking

    def open(self, path: Sequence[int]) -> WindowLease:
        """A lease that goes on after `path`; the parts of its window that only the host has are ordered to the device.
        The caller has asked `fits`."""
        window = path[-self.reach :]
        lease = WindowLease(self.quota, len(path) - len(window))
        self._promised += lease.quota
        self.leases.add(lease)
        for page in window:
            self.side.guard(page, Tier.DEVICE)
        self._load([page for page in window if not self._coming(page)])
        for number, page in enumerate(window, lease.first):
            lease.slots.append(self._slot(page))
            lease.shared[number] = page
        self._touch(window)
        return lease

    def prepare(self, lease: WindowLease, start: int, end: int, settled: bool) -> tuple[int, ...] | None:
        """Slots for a step that computes in pages `start` to `end - 1` and reads the window before them, or None when
        there is no room just now. With `settled`, all pages before `start` are in the tree, and what has passed out of
        the window is let go."""
        if settled:
            self._trim(lease, start - self.reach)
        lacking = end - lease.end
        if lacking > 0:
            fresh = self.side.take(Tier.DEVICE, lacking, Owner.REQUEST)
            if len(fresh) < lacking:
                self.side.device.book.give(fresh, Owner.REQUEST)
                return None
            lease.slots += fresh
        return tuple(lease.slots[: end - lease.first])

    def mark(self, lease: WindowLease, count: int, tip: int) -> list[int]:
        """The history may be taken up again after its first `count` pages, the last of which is `tip`: the window
        before that goes into the tree. Returns its pages, in order."""
        window, page = [], tip
        for number in range(count - 1, max(lease.first, count - self.reach) - 1, -1):
            self._share(lease, number, page)
            window.append(page)
            page = self._tree.columns.parent[page]
        window.reverse()
        self._touch(window)
        return window

    def close(self, lease: WindowLease) -> None:
        """The request is done: what it shares stays for others, the rest is free."""
        self._trim(lease, lease.end)
        self.leases.remove(lease)
        self._promised -= lease.quota

    def _share(self, lease: WindowLease, number: int, page: int) -> None:
        if number in lease.shared or number >= lease.end:
            return
        own = lease.slots[number - lease.first]
        self.side.guard(page, Tier.DEVICE)
        lease.shared[number] = page
        if self._coming(page):
            lease.slots[number - lease.first] = self._slot(page)
            self.side.device.book.give([own], Owner.REQUEST)
        else:
            self.side.device.book.move([own], Owner.REQUEST, Owner.TREE)
            self.side.place(page, Tier.DEVICE, own, self._tree.tick)

    def _trim(self, lease: WindowLease, first: int) -> None:
        gone = min(first, lease.end) - lease.first
        if gone <= 0:
            return
        for number, slot in enumerate(lease.slots[:gone], lease.first):
            page = lease.shared.pop(number, None)
            if page is None:
                self.side.device.book.give([slot], Owner.REQUEST)
            else:
                self.side.unguard(page, Tier.DEVICE)
        del lease.slots[:gone]
        lease.first += gone

    def _coming(self, page: int) -> bool:
        return page in self.side.device.slots or page in self._arriving

    def _slot(self, page: int) -> int:
        return self._arriving[page] if page in self._arriving else self.side.device.slots[page]

    def _load(self, pages: Sequence[int]) -> None:
        if not pages:
            return
        side = self.side
        targets = side.take(Tier.DEVICE, len(pages), Owner.FLIGHT)
        self._arriving.update(zip(pages, targets, strict=True))
        for page in pages:
            side.guard(page, Tier.HOST)
        hold = self._tree.hold(pages[-1], HoldKind.DEVICE)
        finish = partial(self._end_load, pages, targets)
        operation = Operation(Direction.LOAD, side.component, targets, hold, finish)
        self._copies.order(operation, targets, [side.host.slots[page] for page in pages])

    def _end_load(self, pages: Sequence[int], targets: Sequence[int]) -> None:
        side = self.side
        side.device.book.move(targets, Owner.FLIGHT, Owner.TREE)
        for page, slot in zip(pages, targets, strict=True):
            del self._arriving[page]
            side.place(page, Tier.DEVICE, slot, self._tree.tick)
            side.unguard(page, Tier.HOST)
        self.moves.loaded += len(pages)

    def _touch(self, window: Sequence[int]) -> None:
        for page in window:
            self.side.touch(page, self._tree.tick)
