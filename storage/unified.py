"""One device buffer for pages and checkpoints: a checkpoint lies in whole page slots, as many as it takes, anywhere.

Fixed shares waste memory: many short requests need many states and few pages, a few long ones the reverse. With slots
of one size for both there is no boundary to move and nothing to compact.
"""

from collections.abc import Sequence
from typing import Protocol

from stratakv.storage.pools import Owner, SlotPool


class PageRoom(Protocol):
    """Where the page slots come from."""

    device: SlotPool


class PlacesInPages:
    """The checkpoint slots of a replica whose pages and checkpoints share the pool of `room`: each is `pages_each` page
    slots under one number. Fulfils `SlotBook`."""

    def __init__(self, room: PageRoom, pages_each: int):
        if pages_each < 1:
            raise ValueError(f"a checkpoint takes {pages_each} pages; it takes 1 or more")
        self._pool = room.device
        self.pages_each = pages_each
        self._places: dict[int, tuple[int, ...]] = {}
        self._counts = dict.fromkeys(Owner, 0)
        self._unused: list[int] = []

    @property
    def capacity(self) -> int:
        """Checkpoints that would fit if there were no pages."""
        return self._pool.capacity // self.pages_each

    @property
    def free(self) -> int:
        """Checkpoints that fit the page slots that are free."""
        return self._pool.free // self.pages_each

    def count(self, owner: Owner) -> int:
        """Checkpoint slots that belong to `owner`."""
        return self._counts[owner]

    def places(self, slot: int) -> tuple[int, ...]:
        """The page slots that `slot` stands for."""
        return self._places[slot]

    def take(self, n: int, owner: Owner) -> list[int] | None:
        """`n` checkpoint slots for `owner`, all or none."""
        pages = self._pool.take(n * self.pages_each, owner)
        if pages is None:
            return None
        slots = []
        for start in range(0, len(pages), self.pages_each):
            slot = self._unused.pop() if self._unused else len(self._places)
            self._places[slot] = tuple(pages[start : start + self.pages_each])
            slots.append(slot)
        self._counts[owner] += n
        return slots

    def move(self, slots: Sequence[int], source: Owner, target: Owner) -> None:
        """Hand slots on."""
        self._pool.move([place for slot in slots for place in self._places[slot]], source, target)
        self._counts[source] -= len(slots)
        self._counts[target] += len(slots)

    def give(self, slots: Sequence[int], source: Owner) -> None:
        """Free slots."""
        self._pool.give([place for slot in slots for place in self._places[slot]], source)
        for slot in slots:
            del self._places[slot]
            self._unused.append(slot)
        self._counts[source] -= len(slots)
