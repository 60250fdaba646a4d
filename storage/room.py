"""Making room: slots are taken from those who may leave, coldest first, and every page that goes is remembered by
its reason."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stratakv.storage.columns import ROOT
from stratakv.storage.departures import Departures
from stratakv.storage.pools import Owner, SlotPool
from stratakv.storage.side import Side
from stratakv.storage.tiers import Component, Miss, PageKey, Tier
from stratakv.storage.tree import Tree


@dataclass(slots=True)
class LeaveCounts:
    """Pages that left since the start, for metrics. `lost` are those that left the replica for good, by reason;
    `lost_sides` the sides whose last copy was evicted while their page stayed."""

    device: int = 0
    host: int = 0
    lost: Counter[Miss] = field(default_factory=Counter)
    lost_sides: Counter[Component] = field(default_factory=Counter)


class Room:
    """The slots of both tiers of a replica, and who must go when there are too few."""

    def __init__(self, tree: Tree, device: SlotPool, host: SlotPool):
        self.device = device
        self.host = host
        self.counts = LeaveCounts()
        self.departures = Departures()
        self._tree = tree
        self._shared: Side | None = None
        self._pages_each = 0
        self._hand = ROOT

    def share(self, side: Side, pages_each: int) -> None:
        """From now on `side` lies in the device slots of pages, `pages_each` of them for one, and what is coldest of
        both goes when either needs room."""
        self._shared, self._pages_each = side, pages_each
        side.evictors[Tier.DEVICE] = self._demote_coldest

    def lends_to(self, side: Side) -> bool:
        """Whether `side` lies in the device slots of pages."""
        return self._shared is side

    @property
    def on_device(self) -> int:
        """Device slots that can be had at once: free ones, and those of pages that may leave now."""
        room = self.device.free + self._tree.freeable
        return room + self._pages_each * (len(self._shared.device.first) if self._shared is not None else 0)

    def take_device(self, count: int, owner: Owner) -> list[int]:
        """`count` device slots for `owner`, evicting saved pages as needed. The caller has checked `on_device`."""
        while self.device.free < count:
            if not self._demote_coldest(count - self.device.free):
                raise RuntimeError("the device pool was promised room that is not there")
        taken = self.device.take(count, owner)
        assert taken is not None
        return taken

    def expose(self) -> bool:
        """Let the coldest saved leaf go when unsaved pages may hide above it, so that those become leaves themselves.
        Room stays as it is. False when nothing is hidden or nothing can go."""
        return self._tree.stuck > 0 and self._demote_coldest()

    def _demote_coldest(self, limit: int = 1) -> bool:
        """Let the coldest clean leaf go, and what is coldest before it, at most `limit` pages. False when none can."""
        if self._shared is not None:
            if self._side_is_colder(self._shared, self._tree.clean_leaves.coldest()):
                return self._shared.evict(Tier.DEVICE)
            limit = 1  # after each page the sides are asked anew
        left = self._tree.leave_run(Tier.DEVICE, limit)
        self.device.give(left.slots, Owner.TREE)
        self.counts.device += len(left.slots)
        self._note_lost(left.lost, Miss.EVICTED)
        return bool(left.slots)

    def _side_is_colder(self, side: Side, page: int | None) -> bool:
        """Whether the coldest of `side` should go before `page`, the coldest clean leaf."""
        other = side.device.first.coldest()
        if other is None or page is None:
            return other is not None
        tree = self._tree
        return tree.rank(other, side.uses[other]) < tree.rank(page, tree.columns.last_use[page])

    def take_host(self, count: int) -> list[int]:
        """Up to `count` host slots for copies in flight, evicting cold host-only pages as needed."""
        self._free_host(count)
        return self.host.take(min(count, self.host.free), Owner.FLIGHT) or []

    def take_host_to_save(self, count: int) -> list[int]:
        """As `take_host`, for pages that must leave the device: if need be, host copies of pages that cannot leave it
        soon go for them."""
        self._free_host(count)
        self._thin_copies(count)
        return self.take_host(count)

    def take_host_to_read(self, count: int) -> list[int]:
        """As `take_host_to_save`, for pages that come from the store. When the host is full of copies of what the
        device has, the coldest of those go from both first: reading needs the room there as well."""
        while not self._free_host(count) and self._demote_coldest():
            pass
        self._thin_copies(count)
        return self.take_host(count)

    def _free_host(self, count: int) -> bool:
        """Evict cold host-only pages until `count` slots are free. False when even all of them are too few."""
        while self.host.free < count:
            left = self._tree.leave_run(Tier.HOST, count - self.host.free)
            if not left.slots:
                return False
            self.host.give(left.slots, Owner.TREE)
            self.counts.host += len(left.slots)
            self._note_lost(left.lost, Miss.EVICTED)
        return True

    def _thin_copies(self, count: int) -> None:
        """Let host copies of pages that cannot leave the device soon go until `count` slots are free, as far as
        possible."""
        while self.host.free < count and (page := self._spare_copy()) is not None:
            self.host.give([self._tree.leave(page, Tier.HOST)], Owner.TREE)
            self.counts.host += 1

    def _spare_copy(self) -> int | None:
        """A page whose host copy may go: it is on the device too and cannot leave it soon, being guarded or above pages
        that are not saved themselves, so losing the copy delays nobody.

        Goes round the rows like a clock hand and looks at 1,024 of them at most; None when it found none.
        """
        tree, columns = self._tree, self._tree.columns
        for _ in range(min(len(columns.key), 1024)):
            self._hand = (self._hand + 1) % len(columns.key)
            page = self._hand
            if (
                (columns.guard[page] or columns.unsaved[page])
                and not columns.keep[page]
                and all(tree.slot(page, tier) is not None for tier in (Tier.DEVICE, Tier.HOST))
            ):
                return page
        return None

    def reclaim(self, count: int) -> bool:
        """The last resort for `count` device slots: drop cold pages that have no host copy. False when even that
        is too little."""
        while self.on_device < count:
            leaf = self._tree.unsaved_leaves.coldest()
            if leaf is None:
                if self.expose():
                    continue
                if self._shared is not None and self._shared.evict(Tier.DEVICE):
                    continue
                return False
            dropped = self._tree.drop(leaf)
            if dropped is None:
                return False
            self.device.give(dropped.device_slots, Owner.TREE)
            self.host.give(dropped.host_slots, Owner.TREE)
            self.counts.device += len(dropped.device_slots)
            self.counts.host += len(dropped.host_slots)
            self._note_lost(dropped.keys, Miss.NO_HOST_ROOM)
        return True

    def _note_lost(self, keys: Sequence[PageKey], reason: Miss) -> None:
        self.departures.note_run(keys, reason)
        self.counts.lost[reason] += len(keys)
