"""Copies of full pages between device and host: which are on their way, and what becomes of them when they have ended.

A page in flight is joined by later requests and never copied twice; it is resident in its new tier only once the end of
its copy is agreed.
"""

from collections.abc import Callable, Sequence
from functools import partial

from stratakv.storage.columns import NONE
from stratakv.storage.copies import Copies, Operation
from stratakv.storage.holds import HoldKind
from stratakv.storage.moves import Direction
from stratakv.storage.pools import Owner
from stratakv.storage.room import Room
from stratakv.storage.stamps import stamps
from stratakv.storage.tiers import Component, Tier
from stratakv.storage.tree import Tree


class Pages:
    """Loads and backups of full pages. `on_saved` is told of pages that have a host copy now; `loaded` and `backed_up`
    count pages since the start, for metrics."""

    def __init__(self, tree: Tree, room: Room, copies: Copies, on_saved: Callable[[list[int]], None]):
        self.loaded = 0
        self.backed_up = 0
        self._tree = tree
        self._room = room
        self._copies = copies
        self._on_saved = on_saved
        self._arriving: dict[int, int] = {}
        self._saving: set[int] = set()

    @property
    def saving(self) -> int:
        """Pages on their way to host."""
        return len(self._saving)

    def arriving(self, page: int) -> bool:
        """Whether `page` is on its way to the device."""
        return page in self._arriving

    def saved(self, page: int) -> bool:
        """Whether `page` has a host copy, or will have when the backup in flight has ended."""
        return page in self._saving or self._tree.slot(page, Tier.HOST) is not None

    def device_slots(self, pages: Sequence[int]) -> list[int]:
        """Where all these pages are, or will be, on the device."""
        column, arriving = self._tree.columns.slots[Component.FULL][Tier.DEVICE], self._arriving
        return [arriving[page] if page in arriving else column[page] for page in pages]

    def device_slot(self, page: int) -> int:
        """Where `page` is on the device, or will be when the load in flight has ended."""
        return self._arriving[page] if page in self._arriving else self._slot(page, Tier.DEVICE)

    def load(self, pages: list[int]) -> None:
        """Order host pages, a stretch of one path, onto the device. The caller has checked that there is room."""
        if not pages:
            return
        targets = self._room.take_device(len(pages), Owner.FLIGHT)
        self._arriving.update(zip(pages, targets, strict=True))
        hold = self._tree.hold(pages[-1], HoldKind.DEVICE)
        finish = partial(self._end_load, pages, targets)
        operation = Operation(Direction.LOAD, Component.FULL, targets, hold, finish)
        self._copies.order(operation, targets, self._slots(pages, Tier.HOST))

    def back_up(self, pages: list[int]) -> None:
        """Order pages of one path, first ones first, to host as far as there is room. Saved ones are passed over."""
        if not self._room.host.capacity:
            return
        column, saving = self._tree.columns.slots[Component.FULL][Tier.HOST], self._saving
        unsaved = [page for page in pages if column[page] == NONE and page not in saving]
        targets = self._room.take_host(len(unsaved))
        self._order_backup(unsaved[: len(targets)], targets)

    def back_up_from_leaf(self, chain: list[int]) -> bool:
        """Order a chain, given leaf first, to host: as much of its end as there is room for. False when there is
        none."""
        targets = self._room.take_host_to_save(len(chain))
        self._order_backup(chain[: len(targets)][::-1], targets)
        return bool(targets)

    def _order_backup(self, pages: list[int], targets: list[int]) -> None:
        if not pages:
            return
        self._saving.update(pages)
        hold = self._tree.hold(pages[-1], HoldKind.DEVICE)
        finish = partial(self._end_backup, pages, targets)
        operation = Operation(Direction.BACKUP, Component.FULL, targets, hold, finish)
        sources = self._slots(pages, Tier.DEVICE)
        self._copies.order(operation, sources, targets, stamps(self._tree, pages))

    def _end_load(self, pages: list[int], targets: list[int]) -> None:
        self._tree.place_run(pages, Tier.DEVICE, targets)
        for page in pages:
            del self._arriving[page]
        self._room.device.move(targets, Owner.FLIGHT, Owner.TREE)
        self.loaded += len(pages)

    def _end_backup(self, pages: list[int], targets: list[int]) -> None:
        self._tree.place_run(pages, Tier.HOST, targets)
        self._saving.difference_update(pages)
        self._room.host.move(targets, Owner.FLIGHT, Owner.TREE)
        self.backed_up += len(pages)
        self._on_saved(pages)

    def _slot(self, page: int, tier: Tier) -> int:
        slot = self._tree.slot(page, tier)
        assert slot is not None
        return slot

    def _slots(self, pages: list[int], tier: Tier) -> list[int]:
        column = self._tree.columns.slots[Component.FULL][tier]
        slots = [column[page] for page in pages]
        assert NONE not in slots
        return slots
