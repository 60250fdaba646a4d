"""One forward as one pool sees it: where its new KV goes, and which calls read what of it.

A model whose layers see different reaches has two pools, and each forward a `PagedBatch` for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stratakv.kernels.pool import DevicePool
from stratakv.kernels.work import (
    CallLimits,
    DecodeGroup,
    PagedRow,
    PoolRows,
    PrefillSpan,
    decode_groups,
    indices,
    prefill_span,
    to_device,
)


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """All calls that one layer has to make. Their `tokens` cover the flat batch in order, decode first."""

    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillSpan, ...]


class PagedBatch:
    """The rows of a forward over `pool`, in the order of the flat batch, of which the first `decodes` have one token.

    `write` are the pool rows of all new tokens.
    """

    def __init__(self, rows: Sequence[PagedRow], decodes: int, pool: DevicePool):
        self.pool = pool
        self.write = _write_rows(rows, pool)
        self._decode = rows[:decodes]
        self._prefill = rows[decodes:]
        self._limits = CallLimits.of(pool)
        self._work: dict[int | None, AttentionWork] = {}
        self._scratch: dict[str, torch.Tensor] = {}

    def work(self, window: int | None) -> AttentionWork:
        """The calls of a layer whose queries see the last `window` tokens, themselves included; None sees all."""
        if window not in self._work:
            spans, first = [], len(self._decode)
            for row in self._prefill:
                spans.append(prefill_span(row, first, window, self.pool, self._limits))
                first += row.end - row.start
            groups = decode_groups(self._decode, window, self.pool, self._limits)
            self._work[window] = AttentionWork(tuple(groups), tuple(spans))
        return self._work[window]

    def store(self, memory: "PoolMemory", fresh: torch.Tensor) -> None:
        """Put `fresh` [1, kv_heads, T, dim] where the forward's new tokens go."""
        if isinstance(self.write, slice):
            memory.heads.narrow(2, self.write.start, self.write.stop - self.write.start).copy_(fresh)
        else:
            memory.rows.index_copy_(0, self.write, fresh[0].transpose(0, 1))

    def read(self, memory: "PoolMemory", where: PoolRows, count: int = 1) -> torch.Tensor:
        """Rows `where`, K for each of `count` requests, as [count, kv_heads, K, dim]; a view if `where` is a slice."""
        if isinstance(where, slice):
            return memory.heads.narrow(2, where.start, where.stop - where.start)
        gathered = self._gather(where, memory)
        return gathered.view(count, -1, *memory.rows.shape[1:]).transpose(1, 2)

    def _gather(self, rows: torch.Tensor, memory: "PoolMemory") -> torch.Tensor:
        """`memory.rows[rows]` in a buffer that is used again by the next call for a memory of this name.

        Fresh memory of this size would be paged in anew for each layer, which costs more than the copy.
        """
        source = memory.rows
        shape = (len(rows), *source.shape[1:])
        needed = shape[0] * shape[1] * shape[2]
        buffer = self._scratch.get(memory.name)
        if buffer is None or buffer.numel() < needed:
            buffer = self._scratch[memory.name] = source.new_empty(needed)
        return torch.index_select(source, 0, rows, out=buffer[:needed].view(shape))


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """Keys or values, as `name` says, of a layer: `rows` [rows, kv_heads, dim], as `heads` [1, kv_heads, rows, dim]."""

    name: str
    rows: torch.Tensor
    heads: torch.Tensor

    @classmethod
    def keys(cls, pool: DevicePool, layer: int) -> "PoolMemory":
        """Keys of entry `layer` of the pool's shapes."""
        return cls("keys", pool.key_rows[layer], pool.key_heads[layer])

    @classmethod
    def values(cls, pool: DevicePool, layer: int) -> "PoolMemory":
        """Values of entry `layer` of the pool's shapes."""
        return cls("values", pool.value_rows[layer], pool.value_heads[layer])


def _write_rows(rows: Sequence[PagedRow], pool: DevicePool) -> PoolRows:
    parts = [row.rows(pool.page_size, row.start, row.end) for row in rows]
    whole = parts[0] if len(parts) == 1 else np.concatenate([indices(part) for part in parts])
    return to_device(whole, pool.device)
