"""Slots of the device and the host pool: who owns each place for a page, and the host's bytes.

The hierarchy books here before any byte moves. Ownership is linear: a slot is free, or owned by exactly one
of the tree, a request, or an operation in flight. A slot that is moved or given back by anyone but its owner
is a `SlotError` at once, before it can become a wrong token.
"""

import zlib
from collections.abc import Iterable
from enum import IntEnum
from mmap import mmap

import numpy as np

from stratakv.storage.header import BlockHeader
from stratakv.storage.layout import HEADER_BYTES, BlockLayout


class Owner(IntEnum):
    """Who a slot belongs to."""

    FREE = 0
    TREE = 1
    """It holds a page of the page tree."""
    REQUEST = 2
    """A running request writes tokens into it that no other request may see yet."""
    FLIGHT = 3
    """The target of a copy that is not yet agreed to have ended."""


class SlotError(Exception):
    """A slot was used by someone who does not own it, or a pool's books disagree. Always a bug."""


class SlotPool:
    """The books of one pool of `capacity` slots, numbered from 0. Knows no bytes.

    A fresh pool hands out ascending numbers, and slots given back together come out together, so that the
    pages of a request tend to lie side by side. Not thread-safe.
    """

    def __init__(self, name: str, capacity: int):
        if capacity < 0:
            raise ValueError(f"pool {name}: capacity is {capacity}; it is 0 or more slots")
        self._name = name
        self._owners = bytearray(capacity)
        self._free = list(range(capacity - 1, -1, -1))
        self._counts = [0] * len(Owner)
        self._counts[Owner.FREE] = capacity

    @property
    def name(self) -> str:
        """What errors call this pool."""
        return self._name

    @property
    def capacity(self) -> int:
        """Slots in all; never changes."""
        return len(self._owners)

    @property
    def free(self) -> int:
        """Slots that nobody owns."""
        return len(self._free)

    def count(self, owner: Owner) -> int:
        """Slots that belong to `owner`. O(1); the counts of all owners sum to the capacity."""
        return self._counts[owner]

    def take(self, n: int, owner: Owner) -> list[int] | None:
        """Give `n` free slots to `owner`, all or none: None, and no change, when fewer are free."""
        if owner is Owner.FREE:
            raise SlotError(f"pool {self._name}: slots are taken for an owner, not for {owner.name}")
        if n < 0:
            raise ValueError(f"pool {self._name}: cannot take {n} slots")
        if n > len(self._free):
            return None
        kept = len(self._free) - n
        taken = self._free[kept:]
        del self._free[kept:]
        taken.reverse()
        self._assign(taken, Owner.FREE, owner)
        return taken

    def move(self, slots: Iterable[int], source: Owner, target: Owner) -> None:
        """Hand `slots` from `source` to `target`. SlotError, and no change, unless all are `source`'s."""
        if Owner.FREE in (source, target):
            raise SlotError(
                f"pool {self._name}: move is between owners; use take or give for {Owner.FREE.name} slots"
            )
        self._assign(self._owned(slots, source), source, target)

    def give(self, slots: Iterable[int], source: Owner) -> None:
        """Free `slots` of `source`. SlotError, and no change, unless all are `source`'s: no double free."""
        if source is Owner.FREE:
            raise SlotError(f"pool {self._name}: {source.name} slots cannot be given back again")
        given = self._owned(slots, source)
        self._assign(given, source, Owner.FREE)
        given.reverse()
        self._free += given

    def places(self, slot: int) -> tuple[int, ...]:
        """What `slot` takes up in the buffer: itself."""
        return (slot,)

    def check(self) -> None:
        """Recount. SlotError if counters, free list and the owners of the slots disagree. O(capacity)."""
        for owner in Owner:
            found = self._owners.count(owner)
            if found != self._counts[owner]:
                raise SlotError(
                    f"pool {self._name}: {found} slots are {owner.name}, counted were {self._counts[owner]}"
                )
        listed = {
            slot for slot in self._free if 0 <= slot < self.capacity and self._owners[slot] == Owner.FREE
        }
        if len(self._free) != self._counts[Owner.FREE] or len(listed) != len(self._free):
            raise SlotError(
                f"pool {self._name}: the free list has {len(self._free)} entries, {len(listed)} of them "
                f"distinct FREE slots, where {self._counts[Owner.FREE]} slots are FREE"
            )

    def _owned(self, slots: Iterable[int], source: Owner) -> list[int]:
        checked, owners, capacity = list(slots), self._owners, self.capacity
        if checked and (min(checked) < 0 or max(checked) >= capacity):
            wrong = next(slot for slot in checked if not 0 <= slot < capacity)
            raise SlotError(f"pool {self._name}: there is no slot {wrong}; slots are 0 to {capacity - 1}")
        if not {source}.issuperset(map(owners.__getitem__, checked)):
            wrong = next(slot for slot in checked if owners[slot] != source)
            holder = Owner(owners[wrong]).name
            raise SlotError(f"pool {self._name}: slot {wrong} belongs to {holder}, not to {source.name}")
        if len(set(checked)) != len(checked):
            twice = next(slot for slot in checked if checked.count(slot) > 1)
            raise SlotError(f"pool {self._name}: slot {twice} is named twice")
        return checked

    def _assign(self, slots: list[int], source: Owner, target: Owner) -> None:
        owners = self._owners
        for slot in slots:
            owners[slot] = target
        self._counts[source] -= len(slots)
        self._counts[target] += len(slots)


class HostBlocks:
    """The blocks of a host pool over a buffer that someone else owns, one block of `layout` per slot.

    The order of writing is what makes a block worth reading after a crash: `clear` the header before a byte of the
    payload changes, then `seal` the block with its header when the payload is complete. Views keep the buffer alive.
    """

    def __init__(self, buffer: memoryview | mmap | bytearray, slots: int, layout: BlockLayout):
        """Lay `slots` blocks over the start of a writable `buffer`. ValueError if it is too small or read-only."""
        view = memoryview(buffer).cast("B")
        needed = slots * layout.block_bytes
        if view.readonly:
            raise ValueError("the buffer of a host pool must be writable")
        if view.nbytes < needed:
            raise ValueError(
                f"{slots} blocks of {layout.block_bytes} bytes take {needed} bytes; the buffer has {view.nbytes}"
            )
        self.layout = layout
        self.array = np.frombuffer(view, np.uint8, needed).reshape(slots, layout.block_bytes)
        """uint8 [slots, block_bytes], writable; whole blocks."""
        start = layout.payload_offset
        self.payload = self.array[:, start : start + layout.payload_bytes]
        """uint8 [slots, payload_bytes], a view of `array`; each row is contiguous."""
        self._headers = self.array[:, layout.header_offset : layout.header_offset + HEADER_BYTES]

    @property
    def slots(self) -> int:
        """How many blocks there are."""
        return len(self.array)

    def block(self, slot: int) -> memoryview:
        """The whole block of `slot`, writable bytes."""
        return memoryview(self.array[self._checked(slot)])

    def clear(self, slot: int) -> None:
        """Void the header of `slot`: from here on nobody takes its payload for anything. Call before overwriting."""
        self._headers[self._checked(slot)] = 0

    def seal(self, slot: int, header: BlockHeader) -> None:
        """Write the header of `slot`, after its payload. ValueError if it speaks of another layout."""
        layout = self.layout
        here = (layout.component, layout.group, layout.payload_bytes)
        if (header.component, header.group, header.length) != here:
            raise ValueError(
                f"a header of {header.component} {header.group} with {header.length} bytes cannot seal a block of "
                f"{layout.component} {layout.group} with {layout.payload_bytes}"
            )
        self._headers[self._checked(slot)] = np.frombuffer(header.pack(), np.uint8)

    def header(self, slot: int) -> BlockHeader:
        """What the block in `slot` says of itself. Raises a HeaderError: HeaderCleared if it says nothing."""
        return BlockHeader.unpack(self._headers[self._checked(slot)].tobytes())

    def checksum(self, slot: int) -> int:
        """CRC-32 of the payload of `slot` as it is now."""
        return zlib.crc32(self.payload[self._checked(slot)])

    def _checked(self, slot: int) -> int:
        if not 0 <= slot < len(self.array):
            raise IndexError(f"there is no block {slot}; blocks are 0 to {len(self.array) - 1}")
        return slot
