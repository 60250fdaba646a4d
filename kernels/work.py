"""Which calls attention makes for one batch, and which pool rows each of them reads.

Pure index arithmetic in numpy, done once per forward, pool and window. Padding repeats a row of the same context, so
nothing beyond a context is ever read: what lies there may be another request's, or not a number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from stratakv.kernels.pool import DevicePool

PAD_SLACK = 64
"""Keys that a decode row may be padded by before its own length counts."""

Indices = npt.NDArray[np.int64]
PoolRows = slice | torch.Tensor
"""Rows of the pool: a slice where pages lie in consecutive slots (a view will do), else int64 indices (a gather)."""


class BatchRow(Protocol):
    """One request's part of a forward, as `stratakv.cluster.plan.Row` states it."""

    @property
    def tokens(self) -> Sequence[int]:
        """New token ids."""

    @property
    def start(self) -> int:
        """Tokens that are in the pool already; the position of the first new one."""

    @property
    def pages(self) -> Sequence[int]:
        """Slots of the full pool of the pages of all start + len(tokens) tokens, in order."""

    @property
    def sample(self) -> bool:
        """Whether logits of the last new token are wanted."""

    @property
    def window(self) -> Sequence[int]:
        """Slots of the sliding pool of the last len(window) pages."""

    @property
    def state(self) -> int:
        """Slot of the working state."""


@dataclass(frozen=True, slots=True)
class PagedRow:
    """One request as one pool sees it: new tokens at positions `start` .. `end - 1`, the last of them in the last page.

    `pages` are slots of that pool, of the history's pages from page `first_page` on.
    """

    start: int
    end: int
    pages: Sequence[int]
    first_page: int = 0

    def rows(self, page_size: int, first: int, end: int) -> "slice | Indices":
        """Pool rows of tokens `first` .. `end - 1` of the history, all of which must be in `pages`."""
        absent = self.first_page * page_size
        return pool_rows(self.pages, page_size, first - absent, end - absent)


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Requests of one new token each, attended in one call.

    `tokens` is their place in the flat batch. `keys` are the pool rows of their contexts, request after request, each
    padded to the longest; `mask`, bool [requests, 1, 1, keys], is False on the padding, None if there is none.
    """

    tokens: slice
    keys: PoolRows
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Consecutive queries of a prefill span, attended in one call.

    `tokens` is their place in the flat batch, `keys` the part of the span's keys that any of them sees. `mask`, bool
    [queries, keys], is True where a query may look; None says that queries and keys are the same tokens, plain causal.
    """

    tokens: slice
    keys: slice
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Several new tokens of one request.

    `tokens` is their place in the flat batch. `keys` are the pool rows they see; None when that is only one another, so
    that the fresh K and V serve.
    """

    tokens: slice
    keys: PoolRows | None
    blocks: tuple[QueryBlock, ...]


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How much goes into one attention call.

    A call that several decode rows share must gather their contexts side by side; that pays while it saves more calls
    than it copies bytes. A context above `alone` tokens gets a call to itself; the others share one up to `shared`
    tokens, padding included. A prefill span is cut into blocks of `queries` tokens, of which none looks at the keys
    after it; only a span of at most `causal` tokens that starts a history is left to the kernel's own causal mask.
    """

    alone: int
    shared: int
    queries: int
    causal: int

    @classmethod
    def of(cls, pool: DevicePool) -> "CallLimits":
        """Limits for `pool`. On a CPU those measured to pay: what a call reads or gathers should stay in its cache."""
        token = pool.token_bytes
        if pool.device.type == "cpu":
            return cls(alone=2**19 // token, shared=2**21 // token, queries=128, causal=128)
        return cls(alone=2**30 // token, shared=2**30 // token, queries=1024, causal=2**30)


def pool_rows(pages: Sequence[int], page_size: int, first: int, end: int) -> slice | Indices:
    """Pool rows of tokens `first` .. `end - 1` of a history that lies in `pages`."""
    low, high = first // page_size, (end - 1) // page_size
    base = pages[low] * page_size + first % page_size
    if low == high:
        return slice(base, base + end - first)
    slots = np.asarray(pages[low : high + 1], dtype=np.int64)
    if slots[-1] - slots[0] == high - low and (slots[1:] - slots[:-1] == 1).all():
        return slice(base, base + end - first)
    rows = slots[:, None] * page_size + np.arange(page_size)
    return rows.reshape(-1)[first - low * page_size : end - low * page_size]


def indices(rows: slice | Indices) -> Indices:
    """`rows` spelled out."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def to_device(rows: slice | Indices, device: torch.device) -> PoolRows:
    """`rows` as attention indexes with them on `device`."""
    return rows if isinstance(rows, slice) else torch.from_numpy(rows).to(device)


def decode_groups(
    rows: Sequence[PagedRow], window: int | None, pool: DevicePool, limits: CallLimits
) -> list[DecodeGroup]:
    """Groups for `rows` of one token each, which are the first of the batch, shortest context first."""
    contexts = [row.end if window is None else min(row.end, window) for row in rows]
    groups = []
    first = 0
    for end in range(1, len(rows) + 1):
        if end < len(rows) and _joins(contexts[first : end + 1], limits):
            continue
        groups.append(_group(rows[first:end], contexts[first:end], first, pool))
        first = end
    return groups


def _joins(contexts: Sequence[int], limits: CallLimits) -> bool:
    """Whether the last of `contexts` should share a call with the others; padding is at most about half of a call."""
    shortest, longest = contexts[0], contexts[-1]
    return (
        longest <= limits.alone
        and longest * len(contexts) <= limits.shared
        and longest <= 2 * shortest + PAD_SLACK
    )


def _group(rows: Sequence[PagedRow], contexts: Sequence[int], first: int, pool: DevicePool) -> DecodeGroup:
    seen = [
        row.rows(pool.page_size, row.end - context, row.end)
        for row, context in zip(rows, contexts, strict=True)
    ]
    tokens = slice(first, first + len(rows))
    if len(rows) == 1:
        return DecodeGroup(tokens, to_device(seen[0], pool.device), None)
    lengths = np.array(contexts)
    padded = np.empty((len(rows), lengths.max()), dtype=np.int64)
    for line, one in zip(padded, seen, strict=True):
        own = indices(one)
        line[: len(own)] = own
        line[len(own) :] = own[0]
    mask = None
    if lengths.min() < lengths.max():
        visible = np.arange(lengths.max()) < lengths[:, None]
        mask = torch.from_numpy(visible[:, None, None]).to(pool.device)
    return DecodeGroup(tokens, torch.from_numpy(padded.reshape(-1)).to(pool.device), mask)


def prefill_span(
    row: PagedRow, first: int, window: int | None, pool: DevicePool, limits: CallLimits
) -> PrefillSpan:
    """The calls for one row of several tokens, the first of which is token `first` of the batch."""
    start, end = row.start, row.end
    tokens = slice(first, first + end - start)
    if start == 0 and end <= min(limits.causal, window or end):
        return PrefillSpan(tokens, None, (QueryBlock(tokens, slice(0, end), None),))
    low = first_seen(start, window)
    blocks = []
    for begin in range(start, end, limits.queries):
        stop = min(begin + limits.queries, end)
        left = first_seen(begin, window)
        queries = torch.arange(begin, stop, device=pool.device)[:, None]
        keys = torch.arange(left, stop, device=pool.device)
        mask = keys <= queries
        if window is not None:
            mask &= keys > queries - window
        place = slice(first + begin - start, first + stop - start)
        blocks.append(QueryBlock(place, slice(left - low, stop - low), mask))
    rows = None if low == start else to_device(row.rows(pool.page_size, low, end), pool.device)
    return PrefillSpan(tokens, rows, tuple(blocks))


def first_seen(position: int, window: int | None) -> int:
    """Position of the first token that a query at `position` sees."""
    return 0 if window is None else max(0, position - window + 1)
