"""How the bytes of a page lie: its block per component and group, and how many blocks a memory holds.

A block is `[header room | layer, k|v, token, head in group, dim]`, contiguous, in host memory and in the
store alike, so that an object of the store is written from it and read into it without a copy. The header
(header.py) takes the last bytes of its room: the payload follows it directly, aligned for O_DIRECT where
blocks are large.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stratakv.kernels.shapes import LayerShape
from stratakv.storage.settings import format_size
from stratakv.storage.tiers import Component

HEADER_BYTES = 256

_SMALL_ALIGNMENT = 64
_LARGE_ALIGNMENT = 4096
_LARGE_PAYLOAD = 64 * 1024
_MIB = 2**20


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """Share `index` of `of` equal shares of the KV heads, written `g{i}of{G}`. `g0of1` is all of them."""

    index: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise ValueError(f"there is no group {self.index} of {self.of}; groups are numbered from 0")

    def __str__(self) -> str:
        return f"g{self.index}of{self.of}"

    @classmethod
    def parse(cls, text: str) -> "Group":
        """The group that `text` names. ValueError for anything but `g{i}of{G}`."""
        match = re.fullmatch(r"g([0-9]+)of([0-9]+)", text)
        if not match:
            raise ValueError(f"{text!r} is not a group; write it as g0of1")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class LayerSlice:
    """Where one layer's K and V lie in a payload: bytes from its start, shapes as (token, head, dim)."""

    key_offset: int
    key_shape: tuple[int, int, int]
    value_offset: int
    value_shape: tuple[int, int, int]


@dataclass(frozen=True)
class BlockLayout:
    """The block of one page of `component` and `group`.

    `shapes` has one entry per layer, with the heads of this group alone; `itemsize` is the bytes of one
    element. All offsets and lengths are bytes; offsets count from the start of the block unless they say
    otherwise.
    """

    shapes: Sequence[LayerShape]
    page_size: int
    itemsize: int
    component: Component = Component.FULL
    group: Group = Group()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shapes", tuple(self.shapes))
        if self.page_size < 1 or self.itemsize < 1 or not self.payload_bytes:
            raise ValueError(
                f"a page of {self.page_size} tokens, {len(self.shapes)} layers and {self.itemsize} bytes an "
                "element holds nothing; each must be 1 or more"
            )

    @cached_property
    def payload_bytes(self) -> int:
        """KV of one page, without header or padding. Also what the page takes in the device pool."""
        return self.page_size * self.itemsize * sum(shape.elements_per_token() for shape in self.shapes)

    @property
    def alignment(self) -> int:
        """What header room and block are rounded up to. Part of the identity."""
        return _LARGE_ALIGNMENT if self.payload_bytes >= _LARGE_PAYLOAD else _SMALL_ALIGNMENT

    @property
    def payload_offset(self) -> int:
        """Where the payload starts: the length of the header room."""
        return _round_up(HEADER_BYTES, self.alignment)

    @property
    def header_offset(self) -> int:
        """Where the header starts; the room before it is unused."""
        return self.payload_offset - HEADER_BYTES

    @cached_property
    def block_bytes(self) -> int:
        """Length of the whole block, padding included: the distance from one slot to the next."""
        return _round_up(self.payload_offset + self.payload_bytes, self.alignment)

    @cached_property
    def layer_slices(self) -> tuple[LayerSlice, ...]:
        """One slice per layer, in order. They tile the payload without gaps."""
        slices, offset = [], 0
        for shape in self.shapes:
            key_shape = (self.page_size, shape.heads, shape.key_dim)
            value_shape = (self.page_size, shape.heads, shape.value_dim)
            value_offset = offset + self.itemsize * self.page_size * shape.heads * shape.key_dim
            slices.append(LayerSlice(offset, key_shape, value_offset, value_shape))
            offset += self.itemsize * self.page_size * shape.elements_per_token()
        return tuple(slices)


def header_offset_of(block_bytes: int) -> int:
    """Where the header starts in a block of this length, whose layout need not be known."""
    large = block_bytes >= _LARGE_ALIGNMENT + _LARGE_PAYLOAD
    return (_LARGE_ALIGNMENT if large else _round_up(HEADER_BYTES, _SMALL_ALIGNMENT)) - HEADER_BYTES


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


class MemoryTooSmall(ValueError):
    """A memory setting does not hold the pages that must fit. The message says how much would."""

    setting: str


class DeviceMemoryTooSmall(MemoryTooSmall):
    """`cache.device_memory` is too small."""

    setting = "cache.device_memory"


class HostMemoryTooSmall(MemoryTooSmall):
    """`cache.host_memory` is too small."""

    setting = "cache.host_memory"


def device_slots_for(memory: int, layout: BlockLayout, minimum: int = 1) -> int:
    """Pages that fit `memory` bytes of a device pool. DeviceMemoryTooSmall if fewer than `minimum`."""
    return _slots_for(memory, layout.payload_bytes, minimum, DeviceMemoryTooSmall)


def host_slots_for(memory: int, layout: BlockLayout, minimum: int = 1) -> int:
    """Blocks that fit `memory` bytes of a host pool; 0 for 0, which turns the tier off.

    HostMemoryTooSmall if they are fewer than `minimum`.
    """
    return _slots_for(memory, layout.block_bytes, minimum, HostMemoryTooSmall) if memory else 0


def _slots_for(memory: int, page_bytes: int, minimum: int, error: type[MemoryTooSmall]) -> int:
    slots = memory // page_bytes
    if slots < minimum:
        enough = -(-minimum * page_bytes // _MIB)
        raise error(
            f"{error.setting} is {format_size(memory)}: room for {slots} pages of {page_bytes} bytes, where "
            f"{minimum} must fit; set it to {enough}MiB or more"
        )
    return slots
