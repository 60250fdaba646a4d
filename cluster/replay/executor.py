"""Carries out what the hierarchy orders, at once and without moving a byte: the executor of the replay."""

from stratakv.cluster.replay.shelf import Shelf
from stratakv.storage.moves import Area, Copy, Order, Read, SlotProgress, Write


class InstantExecutor:
    """Every order has ended, and all ranks agree on it, by the next `absorb` of the hierarchy.

    It is its own progress. Writes go to `shelf`, and reads land as far as the shelf has the pages: those of full
    attention, which is all that a replay has.
    """

    def __init__(self, shelf: Shelf):
        self.copied_upto = 0
        self._shelf = shelf
        self._slots: dict[tuple[Area, int], SlotProgress] = {}

    def submit(self, order: Order) -> None:
        """Do it now. Cuts and releases have nothing left to do."""
        if isinstance(order, Copy):
            self.copied_upto = order.number
        elif isinstance(order, Read):
            self._end(Area.PREFETCH, order.slot, sum(self._shelf.read(part.stamps) for part in order.parts))
        elif isinstance(order, Write):
            for part in order.parts:
                self._shelf.put(part.stamps)
            self._end(Area.WRITE, order.slot, sum(len(part.stamps) for part in order.parts))

    def progress(self) -> "InstantExecutor":
        """What has ended: everything."""
        return self

    def slot(self, area: Area, slot: int) -> SlotProgress:
        """How far the occupant of a slot got."""
        return self._slots[area, slot]

    def _end(self, area: Area, slot: int, done: int) -> None:
        self._slots[area, slot] = SlotProgress(done, ended=True, drained=True)
