"""Copies of pages between the device pool (layer-first) and host blocks (page-first).

`host` is a uint8 tensor [host slots, block_bytes]. The payload of a block starts at `payload_offset` and holds, layer
after layer, K [page_size, heads, key_dim] and V [page_size, heads, value_dim] in the pool's dtype. So a layer's part of
a block is contiguous, and a load can go layer by layer under the compute of the layers before. A block may hold a
`share` of the pool's heads instead of all of them: then `heads` above is that share, and the copy leaves the other
heads alone. This is the reference for every faster twin.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from stratakv.kernels.pool import DevicePool
from stratakv.kernels.shapes import Share

Slots = Sequence[int] | torch.Tensor
ALL_HEADS = Share()


def backup(
    pool: DevicePool,
    host: torch.Tensor,
    payload_offset: int,
    device_slots: Slots,
    host_slots: Slots,
    share: Share = ALL_HEADS,
) -> None:
    """Copy the pages in `device_slots[i]` to `host[host_slots[i]]`, all layers; nothing but their payloads changes.

    ValueError when the slots do not pair up, the heads of a layer have no such share, or the payload does not fit the
    block or the dtype's alignment.
    """
    source, target = _pair(pool, device_slots, host_slots, host)
    for part in _parts(pool, host, payload_offset, share):
        part.payload.index_copy_(0, target, part.pages.index_select(0, source).to(host.device))


def load(
    pool: DevicePool,
    host: torch.Tensor,
    payload_offset: int,
    device_slots: Slots,
    host_slots: Slots,
    share: Share = ALL_HEADS,
) -> None:
    """Copy `host[host_slots[i]]` to the pages in `device_slots[i]`, all layers. Errors as `backup`."""
    target, source = _pair(pool, device_slots, host_slots, host)
    for part in _parts(pool, host, payload_offset, share):
        part.pages.index_copy_(0, target, part.payload.index_select(0, source).to(pool.device))


def load_layer(
    pool: DevicePool,
    host: torch.Tensor,
    payload_offset: int,
    layer: int,
    device_slots: Slots,
    host_slots: Slots,
    share: Share = ALL_HEADS,
) -> None:
    """`load` for one layer only: what must have ended before the attention of `layer` reads its pages."""
    target, source = _pair(pool, device_slots, host_slots, host)
    for part in _parts(pool, host, payload_offset, share)[2 * layer : 2 * layer + 2]:
        part.pages.index_copy_(0, target, part.payload.index_select(0, source).to(pool.device))


def _pair(
    pool: DevicePool, device_slots: Slots, host_slots: Slots, host: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both lists as index tensors where they are used."""
    device = torch.as_tensor(device_slots, dtype=torch.int64, device=pool.device)
    blocks = torch.as_tensor(host_slots, dtype=torch.int64, device=host.device)
    if len(device) != len(blocks):
        raise ValueError(f"{len(device)} device slots do not pair with {len(blocks)} host slots")
    return device, blocks


class _Part(NamedTuple):
    """K or V of a layer: `pages` in the pool, `payload` in the blocks, both [slots, page_size, heads, dim]."""

    pages: torch.Tensor
    payload: torch.Tensor


def _parts(pool: DevicePool, host: torch.Tensor, offset: int, share: Share) -> list[_Part]:
    """K of layer 0, V of layer 0, K of layer 1, ..."""
    pages = [_shared(memory, share) for layer in zip(pool.keys, pool.values, strict=True) for memory in layer]
    elements = [part[0].numel() for part in pages]
    size = sum(elements) * pool.dtype.itemsize
    if offset + size > host.shape[1]:
        raise ValueError(
            f"a payload of {size} bytes at offset {offset} does not fit a block of {host.shape[1]} bytes"
        )
    if offset % pool.dtype.itemsize or host.stride(0) % pool.dtype.itemsize:
        raise ValueError(
            f"blocks and payload offset must be multiples of {pool.dtype.itemsize} bytes ({pool.dtype})"
        )
    payload = host[:, offset : offset + size].view(pool.dtype)
    places = torch.split(payload, elements, dim=1)
    return [
        _Part(part, place.view(len(place), *part.shape[1:]))
        for part, place in zip(pages, places, strict=True)
    ]


def _shared(memory: torch.Tensor, share: Share) -> torch.Tensor:
    """The heads of `share` in `memory` [slots, page_size, heads, dim], as a view."""
    heads, rest = divmod(memory.shape[2], share.of)
    if rest:
        raise ValueError(f"{memory.shape[2]} heads do not part into {share.of} equal shares")
    return memory.narrow(2, share.index * heads, heads)
