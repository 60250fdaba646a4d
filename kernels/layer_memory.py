"""The cached KV of one layer in one forward, as attention stores and reads it: as it is, or as a compressed latent."""

from typing import Any, NamedTuple, Protocol

import torch

from stratakv.kernels.context import Arrival, ForwardContext
from stratakv.kernels.paged import PagedBatch, PoolMemory
from stratakv.kernels.work import PoolRows


class KeysAndValues(NamedTuple):
    """K [requests, kv_heads, tokens, key_dim] and V [requests, kv_heads, tokens, value_dim]."""

    key: torch.Tensor
    value: torch.Tensor


class LayerMemory(Protocol):
    """What a layer has cached. Made anew for each layer of each forward."""

    batch: PagedBatch

    def store(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Keep the fresh `key` and `value` [1, kv_heads, T, dim], which reach attention, of the forward's T tokens."""

    def read(self, where: PoolRows, count: int = 1) -> KeysAndValues:
        """K and V of the rows `where`, the same number for each of `count` requests. Valid until the next read."""


def layer_memory(forward: ForwardContext, module: torch.nn.Module) -> LayerMemory:
    """The memory of the layer that attends now, which is `module`."""
    arrival = forward.take_arrival()
    place = forward.place(arrival.layer)
    batch = forward.batch(place.kind)
    if forward.memory.shapes.latent:
        return LatentMemory(batch, place.index, arrival, module)
    return PlainMemory(batch, place.index)


class PlainMemory:
    """K and V as they reach attention."""

    def __init__(self, batch: PagedBatch, layer: int):
        self.batch = batch
        self._keys = PoolMemory.keys(batch.pool, layer)
        self._values = PoolMemory.values(batch.pool, layer)

    def store(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """See `LayerMemory`."""
        self.batch.store(self._keys, key)
        self.batch.store(self._values, value)

    def read(self, where: PoolRows, count: int = 1) -> KeysAndValues:
        """See `LayerMemory`."""
        return KeysAndValues(
            self.batch.read(self._keys, where, count), self.batch.read(self._values, where, count)
        )


class LatentMemory:
    """Multi-head latent attention: of each token only the normalised latent and the rotary part, one row together.

    K and V of all heads are computed from it at each read by the layer itself, `module.expand_kv`, in the same way as
    transformers does when its own cache holds latents.
    """

    def __init__(self, batch: PagedBatch, layer: int, arrival: Arrival, module: Any):
        self.batch = batch
        self._rows = PoolMemory.keys(batch.pool, layer)
        self._arrival = arrival
        self._module = module

    def store(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """See `LayerMemory`; what is kept is what the layer gave to the cache."""
        self.batch.store(self._rows, torch.cat([self._arrival.key, self._arrival.value], dim=-1))

    def read(self, where: PoolRows, count: int = 1) -> KeysAndValues:
        """See `LayerMemory`."""
        rows = self.batch.read(self._rows, where, count)
        rank = self._arrival.key.shape[-1]
        return KeysAndValues(*self._module.expand_kv(rows[..., :rank], rows[..., rank:]))
