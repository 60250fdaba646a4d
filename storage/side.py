"""State beside the full KV of a page, in slots of its own: windows of sliding layers, recurrent checkpoints.

A side may be on any page of a history and missing on the next. A page that leaves the device, or the replica, takes its
side with it; a side may go while its page stays (a tombstone). The page tree knows nothing of sides.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from stratakv.storage.pools import Owner
from stratakv.storage.queue import LeavingQueue
from stratakv.storage.restore import HitPolicy
from stratakv.storage.tiers import Component, Tier


class SlotBook(Protocol):
    """Who owns which slot of one pool: a `SlotPool`, or a part of one that is lent out."""

    @property
    def capacity(self) -> int:
        """Slots in all."""

    @property
    def free(self) -> int:
        """Slots that nobody owns."""

    def count(self, owner: Owner) -> int:
        """Slots that belong to `owner`."""

    def take(self, n: int, owner: Owner) -> list[int] | None:
        """`n` free slots for `owner`, all or none."""

    def move(self, slots: Sequence[int], source: Owner, target: Owner) -> None:
        """Hand slots on."""

    def give(self, slots: Sequence[int], source: Owner) -> None:
        """Free slots."""

    def places(self, slot: int) -> tuple[int, ...]:
        """What a slot takes up in the buffer: itself, or several slots of the pool it is lent from."""


class SideTier:
    """The slots of one side in one tier: which page has which, who uses it, and who may leave, coldest first."""

    def __init__(self, book: SlotBook, rank: Callable[[int], float]):
        self.book = book
        self.slots: dict[int, int] = {}
        """Slot by page."""
        self.guards: dict[int, int] = {}
        """Uses by page. May be there before the slot is: what is on its way is wanted."""
        self.first = LeavingQueue(rank)
        """Pages whose slot may go, before any of `last`. Device: those with a host copy. Host: those with the only
        copy, since what the device has too is what is used most."""
        self.last = LeavingQueue(rank)
        """The other pages whose slot may go."""

    @property
    def room(self) -> int:
        """Slots that can be had at once."""
        return self.book.free + len(self.first) + len(self.last)

    def coldest(self) -> int | None:
        """The page whose slot goes next; None when none may."""
        page = self.first.coldest()
        return self.last.coldest() if page is None else page

    def settle(self, page: int, first: bool) -> None:
        """Bring the queues up to date for `page`, which belongs in `first` or in `last` if its slot may go."""
        may_go = page in self.slots and page not in self.guards
        self.first.set(page, may_go and first)
        self.last.set(page, may_go and not first)


class Side:
    """One side component of a replica, on its device and its host.

    `policy` says what of it a prefix needs. `rank` gives the worth of a page by when its side was last used, for the
    order of leaving. `on_change(page, held)` is told when a page gets its first slot or loses its last, `on_lost(page)`
    when its last copy was evicted.
    """

    def __init__(
        self,
        component: Component,
        policy: HitPolicy,
        device: SlotBook,
        host: SlotBook,
        rank: Callable[[int, int], float],
        on_change: Callable[[int, bool], None],
        on_lost: Callable[[int], None],
    ):
        self.component = component
        self.policy = policy
        self.uses: dict[int, int] = {}
        """Tick of the last use, by page."""
        self.stored: set[int] = set()
        """Pages whose side the store is known to have."""
        self.saving: set[int] = set()
        """Pages whose side is on its way to host."""
        self.evicted = 0
        """Slots that were taken from their pages, in both tiers."""

        def ranked(page: int) -> float:
            return rank(page, self.uses[page])

        self.device = SideTier(device, ranked)
        self.host = SideTier(host, ranked)
        self.evictors: dict[Tier, Callable[[], bool]] = {
            Tier.DEVICE: lambda: self.evict(Tier.DEVICE),
            Tier.HOST: lambda: self.evict(Tier.HOST),
        }
        """How a slot of each tier is made free; where a pool is shared, by letting others go."""
        self._tiers = {Tier.DEVICE: self.device, Tier.HOST: self.host}
        self._on_change = on_change
        self._on_lost = on_lost

    def held(self, page: int) -> bool:
        """Whether the side of `page` is on this replica."""
        return page in self.device.slots or page in self.host.slots

    def touch(self, page: int, tick: int) -> None:
        """The side of `page` was used at `tick`."""
        self.uses[page] = tick

    def place(self, page: int, tier: Tier, slot: int, tick: int) -> None:
        """The side of `page` is now in `tier` at `slot`, which belongs to the tree; used at `tick`."""
        assert page not in self._tiers[tier].slots
        fresh = not self.held(page)
        self.uses[page] = max(tick, self.uses.get(page, 0))
        self._tiers[tier].slots[page] = slot
        self._settle(page)
        if fresh:
            self._on_change(page, True)

    def guard(self, page: int, tier: Tier) -> None:
        """Keep the slot of `page` in `tier`, or the one that is on its way, until `unguard`."""
        guards = self._tiers[tier].guards
        guards[page] = guards.get(page, 0) + 1
        self._settle(page)

    def unguard(self, page: int, tier: Tier) -> None:
        """Undo one `guard`."""
        guards = self._tiers[tier].guards
        guards[page] -= 1
        if not guards[page]:
            del guards[page]
        self._settle(page)

    def take(self, tier: Tier, count: int, owner: Owner) -> list[int]:
        """`count` slots of `tier` for `owner`, or as many as can be had, evicting the coldest that may go."""
        book = self._tiers[tier].book
        while book.free < count and self.evictors[tier]():
            pass
        return book.take(min(count, book.free), owner) or []

    def evict(self, tier: Tier) -> bool:
        """Let the coldest slot of `tier` go. False when none may."""
        page = self._tiers[tier].coldest()
        if page is None:
            return False
        self.leave(page, tier)
        self.evicted += 1
        if not self.held(page):
            self._on_lost(page)
        return True

    def leave(self, page: int, tier: Tier) -> None:
        """The side of `page` leaves `tier`, if it is there; its slot is free. It must not be guarded."""
        here = self._tiers[tier]
        if page not in here.slots:
            return
        assert page not in here.guards, f"the {self.component} side of page {page} left the {tier} in use"
        here.book.give([here.slots.pop(page)], Owner.TREE)
        self._settle(page)
        if not self.held(page):
            self._on_change(page, False)

    def forget(self, page: int) -> None:
        """The page is gone for good: its side leaves both tiers and its row may be used for another page."""
        self.leave(page, Tier.DEVICE)
        self.leave(page, Tier.HOST)
        self.uses.pop(page, None)
        self.stored.discard(page)

    def _settle(self, page: int) -> None:
        """Bring the queues up to date for `page`."""
        self.device.settle(page, page in self.host.slots or not self.host.book.capacity)
        self.host.settle(page, page not in self.device.slots)
