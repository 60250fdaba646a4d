"""The host tier of one rank: blocks of every component and group, laid over its slab one after another.

Blocks that belong to the same page of a component have the same slot number: one for each group of KV heads that the
rank holds, and one for each further row per token that goes where the full page goes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap

import torch

from stratakv.kernels.kv_copy import ALL_HEADS
from stratakv.kernels.pool import DevicePool
from stratakv.kernels.shapes import Share
from stratakv.storage.layout import BlockLayout
from stratakv.storage.pools import HostBlocks
from stratakv.storage.tiers import Component


@dataclass(frozen=True)
class Blocks:
    """Blocks of one layout, slot by slot. `tensor` is the same memory, uint8 [slots, block_bytes]. `share` of the heads
    of the device pool `pool` lies in them; None where no pool of pages does. `writes` if this rank stores them."""

    host: HostBlocks
    tensor: torch.Tensor
    pool: DevicePool | None
    share: Share
    writes: bool

    @property
    def layout(self) -> BlockLayout:
        """How a block lies."""
        return self.host.layout

    @property
    def offset(self) -> int:
        """Where a payload starts in its block."""
        return self.host.layout.payload_offset


@dataclass(frozen=True)
class BlockSpec:
    """What to lay out: `slots` blocks of `layout`; the rest as in `Blocks`."""

    layout: BlockLayout
    slots: int
    pool: DevicePool | None = None
    share: Share = ALL_HEADS
    writes: bool = True

    @property
    def bytes(self) -> int:
        """The memory it takes."""
        return self.slots * self.layout.block_bytes


class HostMemory:
    """All blocks of a rank by the component with whose slots they go."""

    def __init__(self, buffer: memoryview | mmap | bytearray, specs: Mapping[Component, Sequence[BlockSpec]]):
        """Lay out `specs` over the start of `buffer`. ValueError if it is too small."""
        view, offset = memoryview(buffer).cast("B"), 0
        self._blocks: dict[Component, tuple[Blocks, ...]] = {}
        for component, parts in specs.items():
            made = []
            for spec in parts:
                host = HostBlocks(view[offset : offset + spec.bytes], spec.slots, spec.layout)
                made.append(Blocks(host, torch.from_numpy(host.array), spec.pool, spec.share, spec.writes))
                offset += spec.bytes
            self._blocks[component] = tuple(made)

    def of(self, component: Component) -> tuple[Blocks, ...]:
        """What makes up a slot of `component`, in the order in which it is read and written."""
        return self._blocks[component]

    def layouts(self) -> list[BlockLayout]:
        """The layouts of all blocks."""
        return [blocks.layout for parts in self._blocks.values() for blocks in parts]


def bytes_of(specs: Iterable[Sequence[BlockSpec]]) -> int:
    """The memory that all of `specs` take."""
    return sum(spec.bytes for parts in specs for spec in parts)
