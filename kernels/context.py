"""What attention must know of one forward: the pool, where new KV goes and which rows each query may see.

Built once per forward from the rows of a step's plan and found by every layer through `current_forward`, since not all
models pass keyword arguments down to their attention. No index tensor is ever made per layer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch

from stratakv.kernels.pool import DevicePool
from stratakv.kernels.work import (
    BatchRow,
    CallLimits,
    DecodeGroup,
    PrefillSpan,
    decode_groups,
    indices,
    pool_rows,
    prefill_span,
    to_device,
)


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """All calls that one layer has to make. Their `tokens` cover the flat batch in order, decode first."""

    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillSpan, ...]


class ForwardContext:
    """Metadata of one forward over `pool`.

    The batch is flat: T tokens, first the rows of one token (decode) by length of their context, then the longer ones
    (prefill), so that whatever is attended together is a slice. All tensors are int64 on the pool's device:
    `tokens` and `positions` [T]; `last`, for each row that samples, in the order the rows were given, where its last
    token is in the batch. `write` are the pool rows of the T new tokens.
    """

    def __init__(self, rows: Sequence[BatchRow], pool: DevicePool):
        """ValueError when there is no row, a row has no token, or its pages do not fit its length or the pool."""
        if not rows:
            raise ValueError("a forward needs a row")
        for row in rows:
            _check(row, pool)
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i].tokens) > 1, rows[i].start))
        lengths = np.array([len(rows[i].tokens) for i in order])
        ends = lengths.cumsum()
        last = np.empty(len(rows), dtype=np.int64)
        last[order] = ends - 1
        self.pool = pool
        self.tokens = self._tensor([token for i in order for token in rows[i].tokens])
        self.positions = self._tensor(
            np.concatenate([np.arange(rows[i].start, rows[i].start + len(rows[i].tokens)) for i in order])
        )
        self.last = self._tensor([last[i] for i in range(len(rows)) if rows[i].sample])
        self.write = self._write_rows([rows[i] for i in order])
        decodes = int((lengths == 1).sum())
        self._decode = [rows[i] for i in order[:decodes]]
        self._prefill = [rows[i] for i in order[decodes:]]
        self._starts = [
            int(end - length) for end, length in zip(ends[decodes:], lengths[decodes:], strict=True)
        ]
        self._limits = CallLimits.of(pool)
        self._work: dict[int | None, AttentionWork] = {}
        self._scratch: dict[str, torch.Tensor] = {}

    def work(self, window: int | None) -> AttentionWork:
        """The calls of a layer whose queries see the last `window` tokens, themselves included; None sees all."""
        if window not in self._work:
            spans = [
                prefill_span(row, first, window, self.pool, self._limits)
                for row, first in zip(self._prefill, self._starts, strict=True)
            ]
            groups = decode_groups(self._decode, window, self.pool, self._limits)
            self._work[window] = AttentionWork(tuple(groups), tuple(spans))
        return self._work[window]

    def gather(self, rows: torch.Tensor, source: torch.Tensor, name: str) -> torch.Tensor:
        """`source[rows]` in a buffer that is used again by the next call with this `name`.

        Fresh memory of this size would be paged in anew for each layer, which costs more than the copy.
        """
        shape = (len(rows), *source.shape[1:])
        buffer = self._scratch.get(name)
        if buffer is None or buffer.numel() < shape[0] * shape[1] * shape[2]:
            buffer = self._scratch[name] = source.new_empty(shape[0] * shape[1] * shape[2])
        target = buffer[: shape[0] * shape[1] * shape[2]].view(shape)
        return torch.index_select(source, 0, rows, out=target)

    def _write_rows(self, rows: Sequence[BatchRow]) -> slice | torch.Tensor:
        page_size = self.pool.page_size
        parts = [pool_rows(row.pages, page_size, row.start, row.start + len(row.tokens)) for row in rows]
        whole = parts[0] if len(parts) == 1 else np.concatenate([indices(part) for part in parts])
        return to_device(whole, self.pool.device)

    def _tensor(self, values: Sequence[int] | np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(self.pool.device)


_current: ContextVar[ForwardContext] = ContextVar("forward")


def current_forward() -> ForwardContext:
    """The forward that runs on this thread. RuntimeError outside of `forwarding`."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError(
            "paged attention ran outside a forward; call the model through Model.forward"
        ) from None


@contextmanager
def forwarding(context: ForwardContext) -> Iterator[ForwardContext]:
    """Make `context` the current one within the block."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def _check(row: BatchRow, pool: DevicePool) -> None:
    if not row.tokens:
        raise ValueError("a row needs a token")
    needed = -(-(row.start + len(row.tokens)) // pool.page_size)
    if len(row.pages) != needed:
        raise ValueError(
            f"a row of {row.start} + {len(row.tokens)} tokens needs {needed} pages, not {len(row.pages)}"
        )
    if min(row.pages) < 0 or max(row.pages) >= pool.slots:
        raise ValueError(f"pages {row.pages} are not all slots of a pool of {pool.slots}")
