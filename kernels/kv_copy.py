"""Copies of pages between the device pool (layer-first) and host blocks (page-first).

`host` is a uint8 tensor [host slots, block_bytes]. The payload of a block starts at `payload_offset` and holds, layer
after layer, K [page_size, heads, key_dim] and V [page_size, heads, value_dim] in the pool's dtype. So a layer's part of
a block is contiguous, and a load can go layer by layer under the compute of the layers before. This is the reference
for every faster twin.
"""

from collections.abc import Sequence

import torch

from stratakv.kernels.pool import DevicePool, bytes_per_page

Slots = Sequence[int] | torch.Tensor


def backup(
    pool: DevicePool, host: torch.Tensor, payload_offset: int, device_slots: Slots, host_slots: Slots
) -> None:
    """Copy the pages in `device_slots[i]` to `host[host_slots[i]]`, all layers; nothing but their payloads changes.

    ValueError when the slots do not pair up or the payload does not fit the block or the dtype's alignment.
    """
    source, target = _pair(pool, device_slots, host_slots, host)
    for pages, payload in _layers(pool, host, payload_offset):
        payload.index_copy_(0, target, pages.index_select(0, source).to(host.device))


def load(
    pool: DevicePool, host: torch.Tensor, payload_offset: int, device_slots: Slots, host_slots: Slots
) -> None:
    """Copy `host[host_slots[i]]` to the pages in `device_slots[i]`, all layers. Errors as `backup`."""
    target, source = _pair(pool, device_slots, host_slots, host)
    for pages, payload in _layers(pool, host, payload_offset):
        pages.index_copy_(0, target, payload.index_select(0, source).to(pool.device))


def load_layer(
    pool: DevicePool,
    host: torch.Tensor,
    payload_offset: int,
    layer: int,
    device_slots: Slots,
    host_slots: Slots,
) -> None:
    """`load` for one layer only: what must have ended before the attention of `layer` reads its pages."""
    target, source = _pair(pool, device_slots, host_slots, host)
    for pages, payload in _layers(pool, host, payload_offset)[2 * layer : 2 * layer + 2]:
        pages.index_copy_(0, target, payload.index_select(0, source).to(pool.device))


def _pair(
    pool: DevicePool, device_slots: Slots, host_slots: Slots, host: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both lists as index tensors where they are used."""
    device = torch.as_tensor(device_slots, dtype=torch.int64, device=pool.device)
    blocks = torch.as_tensor(host_slots, dtype=torch.int64, device=host.device)
    if len(device) != len(blocks):
        raise ValueError(f"{len(device)} device slots do not pair with {len(blocks)} host slots")
    return device, blocks


def _layers(pool: DevicePool, host: torch.Tensor, offset: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """K of layer 0, V of layer 0, K of layer 1, ...: pages in the pool and their payload, both [slots, elements]."""
    size = bytes_per_page(pool.shapes, pool.page_size, pool.dtype)
    if offset + size > host.shape[1]:
        raise ValueError(
            f"a payload of {size} bytes at offset {offset} does not fit a block of {host.shape[1]} bytes"
        )
    if offset % pool.dtype.itemsize or host.stride(0) % pool.dtype.itemsize:
        raise ValueError(
            f"blocks and payload offset must be multiples of {pool.dtype.itemsize} bytes ({pool.dtype})"
        )
    payload = host[:, offset : offset + size].view(pool.dtype)
    pages = [memory.flatten(1) for layer in zip(pool.keys, pool.values, strict=True) for memory in layer]
    parts = torch.split(payload, [part.shape[1] for part in pages], dim=1)
    return list(zip(pages, parts, strict=True))
