"""What a model's layers must know of one forward: its rows, where their KV goes and where their state is.

Built once per forward from the rows of a step's plan and found by every layer through `current_forward`, since not all
models pass keyword arguments down. No index tensor is ever made per layer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch

from stratakv.kernels.memory import DeviceMemory
from stratakv.kernels.paged import PagedBatch
from stratakv.kernels.pool import DevicePool
from stratakv.kernels.shapes import Attention, Place
from stratakv.kernels.work import BatchRow, PagedRow, first_seen


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a layer gave transformers' cache to keep, [1, kv_heads, T, dim] each, right before it attends."""

    layer: int
    key: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class StatePart:
    """Requests whose recurrent layers are run in one call: the same number of tokens each, one after another.

    `tokens` is their place in the flat batch, `slots` [requests] are those of their working states.
    """

    tokens: slice
    slots: torch.Tensor


class ForwardContext:
    """Metadata of one forward over `memory`.

    The batch is flat: T tokens, first the rows of one token (decode) by length of their context, then the longer ones
    (prefill), so that whatever is computed together is a slice. All tensors are int64 on the memory's device: `tokens`
    and `positions` [T]; `last`, for each row that samples, in the order the rows were given, where its last token is in
    the batch. `state_parts` cover the batch; they are empty when the model keeps no recurrent state. `arrival` changes
    with every layer.
    """

    def __init__(self, rows: Sequence[BatchRow], memory: DeviceMemory):
        """Clears the working states of rows that start at 0.

        ValueError when there is no row, a row has no token, or its slots do not fit its length or the memory.
        """
        if not rows:
            raise ValueError("a forward needs a row")
        for row in rows:
            _check(row, memory)
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i].tokens) > 1, rows[i].start))
        ordered = [rows[i] for i in order]
        lengths = np.array([len(row.tokens) for row in ordered])
        last = np.empty(len(rows), dtype=np.int64)
        last[order] = lengths.cumsum() - 1
        decodes = int((lengths == 1).sum())
        self.memory = memory
        self.tokens = self._tensor([token for row in ordered for token in row.tokens])
        self.positions = self._tensor(
            np.concatenate([np.arange(row.start, row.start + len(row.tokens)) for row in ordered])
        )
        self.last = self._tensor([last[i] for i in range(len(rows)) if rows[i].sample])
        self.arrival: Arrival | None = None
        self._batches = {Attention.FULL: PagedBatch([_full(row) for row in ordered], decodes, memory.full)}
        if memory.sliding is not None:
            sliding = [_sliding(row) for row in ordered]
            self._batches[Attention.SLIDING] = PagedBatch(sliding, decodes, memory.sliding)
        self.state_parts: tuple[StatePart, ...] = ()
        if memory.states is not None:
            memory.states.clear([row.state for row in rows if row.start == 0])
            self.state_parts = self._state_parts(ordered, decodes)

    def place(self, layer: int) -> Place:
        """Where the KV of `layer`, as transformers numbers it, is."""
        return self.memory.shapes.places[layer]

    def batch(self, kind: Attention) -> PagedBatch:
        """This forward over the pool of `kind`."""
        return self._batches[kind]

    def take_arrival(self) -> Arrival:
        """What the layer that attends now has given to keep. RuntimeError when it has given nothing since the last."""
        if self.arrival is None:
            raise RuntimeError("a layer attends without having given its KV to the cache")
        arrival, self.arrival = self.arrival, None
        return arrival

    def _state_parts(self, ordered: Sequence[BatchRow], decodes: int) -> tuple[StatePart, ...]:
        parts, first = [], decodes
        if decodes:
            parts.append(StatePart(slice(0, decodes), self._tensor([row.state for row in ordered[:decodes]])))
        for row in ordered[decodes:]:
            end = first + len(row.tokens)
            parts.append(StatePart(slice(first, end), self._tensor([row.state])))
            first = end
        return tuple(parts)

    def _tensor(self, values: Sequence[int] | np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(self.memory.device)


_current: ContextVar[ForwardContext] = ContextVar("forward")


def current_forward() -> ForwardContext:
    """The forward that runs on this thread. RuntimeError outside of `forwarding`."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError(
            "a layer of a served model ran outside a forward; call the model through Model.forward"
        ) from None


@contextmanager
def forwarding(context: ForwardContext) -> Iterator[ForwardContext]:
    """Make `context` the current one within the block."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def _full(row: BatchRow) -> PagedRow:
    return PagedRow(row.start, row.start + len(row.tokens), row.pages)


def _sliding(row: BatchRow) -> PagedRow:
    return PagedRow(
        row.start, row.start + len(row.tokens), row.window, first_page=len(row.pages) - len(row.window)
    )


def _check(row: BatchRow, memory: DeviceMemory) -> None:
    if not row.tokens:
        raise ValueError("a row needs a token")
    needed = -(-(row.start + len(row.tokens)) // memory.page_size)
    if len(row.pages) != needed:
        raise ValueError(
            f"a row of {row.start} + {len(row.tokens)} tokens needs {needed} pages, not {len(row.pages)}"
        )
    _check_slots("pages", row.pages, memory.full)
    if memory.sliding is not None:
        seen = needed - first_seen(row.start, memory.shapes.window) // memory.page_size
        if not seen <= len(row.window) <= needed:
            raise ValueError(
                f"a row of {row.start} + {len(row.tokens)} tokens needs {seen} to {needed} pages of its window, "
                f"not {len(row.window)}"
            )
        _check_slots("window", row.window, memory.sliding)
    if memory.states is not None and not 0 <= row.state < memory.states.slots:
        raise ValueError(f"state {row.state} is not a slot of {memory.states.slots} working states")


def _check_slots(name: str, slots: Sequence[int], pool: DevicePool) -> None:
    if min(slots) < 0 or max(slots) >= pool.slots:
        raise ValueError(f"{name} {slots} are not all slots of a pool of {pool.slots}")
