"""Copies in flight between device and host: ordered by the head, carried out by every rank, committed when all agree.

An operation owns its target slots and holds its pages where they are. A page in flight is joined by later requests
and never copied twice; it is resident in its new tier only once the end of its copy is agreed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from stratakv.storage.moves import Copy, Direction, Executor
from stratakv.storage.pools import Owner
from stratakv.storage.room import Room
from stratakv.storage.stamps import stamps
from stratakv.storage.tiers import Component, Tier
from stratakv.storage.tree import Hold, HoldKind, Tree


@dataclass(frozen=True, slots=True)
class Operation:
    """A copy whose end is not agreed yet: `targets` are the slots it owns, `hold` keeps its `pages` in place."""

    direction: Direction
    pages: list[int]
    targets: list[int]
    hold: Hold


class Copies:
    """Orders copies and commits them. `on_saved` is told of pages that have a host copy now; `loaded` and `backed_up`
    count pages since the start, for metrics."""

    def __init__(self, tree: Tree, room: Room, executor: Executor, on_saved: Callable[[list[int]], None]):
        self.loaded = 0
        self.backed_up = 0
        self.operations: dict[int, Operation] = {}
        self._tree = tree
        self._room = room
        self._executor = executor
        self._on_saved = on_saved
        self._ordered = 0
        self._ended = 0
        self._arriving: dict[int, int] = {}
        self._saving: set[int] = set()

    @property
    def saving(self) -> int:
        """Pages on their way to host."""
        return len(self._saving)

    def arriving(self, page: int) -> bool:
        """Whether `page` is on its way to the device."""
        return page in self._arriving

    def device_slot(self, page: int) -> int:
        """Where `page` is on the device, or will be when the load in flight has ended."""
        return self._arriving[page] if page in self._arriving else self._slot(page, Tier.DEVICE)

    def load(self, pages: list[int]) -> None:
        """Order host pages, a stretch of one path, onto the device. The caller has checked that there is room."""
        if not pages:
            return
        targets = self._room.take_device(len(pages), Owner.FLIGHT)
        self._arriving.update(zip(pages, targets, strict=True))
        self._order(Direction.LOAD, pages, targets, [self._slot(page, Tier.HOST) for page in pages])

    def back_up(self, pages: list[int]) -> None:
        """Order pages of one path, first ones first, to host as far as there is room. Saved ones are passed over."""
        unsaved = [p for p in pages if p not in self._saving and self._tree.slot(p, Tier.HOST) is None]
        targets = self._room.take_host(len(unsaved))
        self._order_backup(unsaved[: len(targets)], targets)

    def back_up_from_leaf(self, chain: list[int]) -> bool:
        """Order a chain, given leaf first, to host: as much of its end as there is room for. False when there is
        none."""
        targets = self._room.take_host(len(chain))
        self._order_backup(chain[: len(targets)][::-1], targets)
        return bool(targets)

    def absorb(self, upto: int) -> None:
        """Commit copies 1 .. `upto`, which every rank has finished."""
        for number in range(self._ended + 1, upto + 1):
            operation = self.operations.pop(number)
            if operation.direction is Direction.LOAD:
                self._end_load(operation)
            else:
                self._end_backup(operation)
            operation.hold.release()
        self._ended = max(self._ended, upto)

    def _order_backup(self, pages: list[int], targets: list[int]) -> None:
        if not pages:
            return
        self._saving.update(pages)
        self._order(Direction.BACKUP, pages, [self._slot(page, Tier.DEVICE) for page in pages], targets)

    def _order(self, direction: Direction, pages: list[int], device: list[int], host: list[int]) -> None:
        self._ordered += 1
        loading = direction is Direction.LOAD
        hold = self._tree.hold(pages[-1], HoldKind.DEVICE)
        self.operations[self._ordered] = Operation(direction, pages, device if loading else host, hold)
        headers = () if loading else stamps(self._tree, pages)
        self._executor.submit(
            Copy(self._ordered, direction, Component.FULL, tuple(device), tuple(host), headers)
        )

    def _end_load(self, operation: Operation) -> None:
        for page, slot in zip(operation.pages, operation.targets, strict=True):
            self._tree.place(page, Tier.DEVICE, slot)
            del self._arriving[page]
        self._room.device.move(operation.targets, Owner.FLIGHT, Owner.TREE)
        self.loaded += len(operation.pages)

    def _end_backup(self, operation: Operation) -> None:
        for page, slot in zip(operation.pages, operation.targets, strict=True):
            self._tree.place(page, Tier.HOST, slot)
        self._saving.difference_update(operation.pages)
        self._room.host.move(operation.targets, Owner.FLIGHT, Owner.TREE)
        self.backed_up += len(operation.pages)
        self._on_saved(operation.pages)

    def _slot(self, page: int, tier: Tier) -> int:
        slot = self._tree.slot(page, tier)
        assert slot is not None
        return slot
