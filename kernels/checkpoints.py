"""Where checkpoints of recurrent state lie on the device. A checkpoint is an opaque blob of a state's bytes.

Either in slots of their own (`FixedCheckpoints`), or cut over page slots of the full pool (`UnifiedCheckpoints`), so
that pages and checkpoints share one buffer and take what they need of it.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from stratakv.kernels.pool import DevicePool
from stratakv.kernels.states import StatePool


class Checkpoints(Protocol):
    """Checkpoints on the device. `places` are the slots that one of them lies in, in order.

    ValueError when `places` are not as many as a checkpoint takes.
    """

    def save(self, states: StatePool, state_slot: int, places: Sequence[int]) -> None:
        """Copy the working state in `state_slot` to the checkpoint in `places`."""

    def restore(self, states: StatePool, state_slot: int, places: Sequence[int]) -> None:
        """Copy the checkpoint in `places` to the working state in `state_slot`."""

    def backup(self, host: torch.Tensor, payload_offset: int, places: Sequence[int], host_slot: int) -> None:
        """Copy the checkpoint in `places` to the payload of block `host_slot` of `host`, uint8 [slots, block_bytes]."""


def load_state(
    states: StatePool, host: torch.Tensor, payload_offset: int, host_slot: int, state_slot: int
) -> None:
    """Copy the checkpoint in block `host_slot` of `host`, uint8 [slots, block_bytes], to a working state."""
    states.unpack(state_slot, _payload(host, payload_offset, host_slot, states.bytes_per_slot))


class FixedCheckpoints:
    """Checkpoints in `slots` slots of their own; a place is one slot."""

    def __init__(self, slots: int, bytes: int, device: torch.device | str = "cpu"):
        """Take `slots * bytes` of memory. ValueError when there would be no slot."""
        if slots < 1 or bytes < 1:
            raise ValueError(f"checkpoints need a slot and a byte, not {slots} and {bytes}")
        self.slots = slots
        self.bytes = bytes
        self._memory = torch.zeros(slots, bytes, dtype=torch.uint8, device=device)

    def save(self, states: StatePool, state_slot: int, places: Sequence[int]) -> None:
        """See `Checkpoints`."""
        self._at(places).copy_(states.pack(state_slot))

    def restore(self, states: StatePool, state_slot: int, places: Sequence[int]) -> None:
        """See `Checkpoints`."""
        states.unpack(state_slot, self._at(places))

    def backup(self, host: torch.Tensor, payload_offset: int, places: Sequence[int], host_slot: int) -> None:
        """See `Checkpoints`."""
        _payload(host, payload_offset, host_slot, self.bytes).copy_(self._at(places))

    def _at(self, places: Sequence[int]) -> torch.Tensor:
        _check(places, 1)
        return self._memory[places[0]]


class UnifiedCheckpoints:
    """Checkpoints in page slots of `pool`, any `pages_per_checkpoint` of them.

    The blob fills one page slot after another; within one its bytes go through K of layer 0, V of layer 0, K of layer
    1, and so on. What is left of the last slot is zeroed.
    """

    def __init__(self, pool: DevicePool, bytes: int):
        if bytes < 1:
            raise ValueError(f"checkpoints need a byte, not {bytes}")
        self.bytes = bytes
        self._parts = [
            memory.flatten(1).view(torch.uint8)
            for layer in zip(pool.keys, pool.values, strict=True)
            for memory in layer
            if memory.numel()
        ]
        self._page_bytes = sum(part.shape[1] for part in self._parts)
        self.pages_per_checkpoint = -(-bytes // self._page_bytes)

    def save(self, states: StatePool, state_slot: int, places: Sequence[int]) -> None:
        """See `Checkpoints`."""
        where = self._index(places)
        blob = self._parts[0].new_zeros(self.pages_per_checkpoint * self._page_bytes)
        blob[: self.bytes] = states.pack(state_slot)
        pages = torch.split(blob.view(len(places), -1), [part.shape[1] for part in self._parts], dim=1)
        for part, piece in zip(self._parts, pages, strict=True):
            part.index_copy_(0, where, piece)

    def restore(self, states: StatePool, state_slot: int, places: Sequence[int]) -> None:
        """See `Checkpoints`."""
        states.unpack(state_slot, self._blob(places))

    def backup(self, host: torch.Tensor, payload_offset: int, places: Sequence[int], host_slot: int) -> None:
        """See `Checkpoints`."""
        _payload(host, payload_offset, host_slot, self.bytes).copy_(self._blob(places))

    def _blob(self, places: Sequence[int]) -> torch.Tensor:
        where = self._index(places)
        pages = torch.cat([part.index_select(0, where) for part in self._parts], dim=1)
        return pages.flatten()[: self.bytes]

    def _index(self, places: Sequence[int]) -> torch.Tensor:
        _check(places, self.pages_per_checkpoint)
        return torch.tensor(places, dtype=torch.int64, device=self._parts[0].device)


def _check(places: Sequence[int], needed: int) -> None:
    if len(places) != needed:
        raise ValueError(f"a checkpoint lies in {needed} slots, not in {len(places)}")


def _payload(host: torch.Tensor, offset: int, slot: int, size: int) -> torch.Tensor:
    if offset + size > host.shape[1]:
        raise ValueError(
            f"a checkpoint of {size} bytes at offset {offset} does not fit a block of {host.shape[1]} bytes"
        )
    return host[slot, offset : offset + size]
