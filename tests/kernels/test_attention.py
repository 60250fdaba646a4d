"""Paged attention against float64 over random histories in scattered pages, with not-a-number everywhere else."""

import secrets
from types import SimpleNamespace

import pytest
import torch
from attention_reference import reference_attention

from stratakv.cluster.plan import Row
from stratakv.kernels.attention import paged_attention
from stratakv.kernels.context import ForwardContext, current_forward, forwarding
from stratakv.kernels.forward_cache import ForwardCache
from stratakv.kernels.memory import DeviceMemory
from stratakv.kernels.shapes import Attention, LayerShape, ModelShapes

LAYER = 1
"""The layer under test; the one before it has another shape, so that layers cannot be mixed up unseen."""


@pytest.fixture
def generator() -> torch.Generator:
    """Fresh inputs in each run; a failure shows the seed."""
    seed = secrets.randbits(32)
    print("seed", seed)
    return torch.Generator().manual_seed(seed)


def memory_of(shapes: list[LayerShape], slots: int, page_size: int) -> DeviceMemory:
    return DeviceMemory.build(ModelShapes.plain(shapes), full=slots, page_size=page_size, dtype=torch.float32)


class Batch:
    """Requests as (cached tokens, new tokens) whose histories lie in `pool`, and the fresh tensors of one forward.

    `layout` is `scattered` or `contiguous`: how the pages of a request lie in the slots.
    """

    def __init__(
        self,
        requests: list[tuple[int, int]],
        generator: torch.Generator,
        *,
        page_size: int = 4,
        heads: int = 6,
        kv_heads: int = 2,
        key_dim: int = 16,
        value_dim: int = 16,
        layout: str = "scattered",
    ):
        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        self.heads, self.value_dim = heads, value_dim
        lengths = [cached + new for cached, new in requests]
        counts = [-(-length // page_size) for length in lengths]
        slots = sum(counts) + 3
        shapes = [LayerShape(1, 8, 8), LayerShape(kv_heads, key_dim, value_dim)]
        self.memory = memory_of(shapes, slots, page_size)
        self.pool = self.memory.full
        for memory in (*self.pool.keys, *self.pool.values):
            memory.fill_(float("nan"))
        free = (
            list(range(slots))
            if layout == "contiguous"
            else torch.randperm(slots, generator=generator).tolist()
        )
        self.keys = [random(length, kv_heads, key_dim) for length in lengths]
        self.values = [random(length, kv_heads, value_dim) for length in lengths]
        self.queries = [random(new, heads, key_dim) for _, new in requests]
        self.rows = []
        for (cached, new), count, key, value in zip(requests, counts, self.keys, self.values, strict=True):
            pages, free = free[:count], free[count:]
            where = torch.tensor([page * page_size + i for page in pages for i in range(page_size)])
            self.pool.key_rows[LAYER][where[:cached]] = key[:cached]
            self.pool.value_rows[LAYER][where[:cached]] = value[:cached]
            # Token ids carry (request, index), so that the flat order can be read off the context.
            ids = tuple(1000 * len(self.rows) + i for i in range(new))
            self.rows.append(Row(ids, cached, tuple(pages), True))

    def run(self, **features: object) -> list[torch.Tensor]:
        """Output of each request, [new, heads, value_dim]."""
        context = ForwardContext(self.rows, self.memory)
        places = [divmod(token, 1000) for token in context.tokens.tolist()]
        starts = [row.start for row in self.rows]

        def flat(per_request: list[torch.Tensor], first: list[int]) -> torch.Tensor:
            tokens = torch.stack([per_request[r][first[r] + i] for r, i in places])
            return tokens.transpose(0, 1)[None]

        query = flat(self.queries, [0] * len(starts))
        key, value = flat(self.keys, starts), flat(self.values, starts)
        with forwarding(context):
            ForwardCache(context).update(key, value, LAYER)
            out, weights = paged_attention(SimpleNamespace(), query, key, value, None, **features)
        assert weights is None
        assert out.shape == (1, len(places), self.heads, self.value_dim)
        results = [torch.zeros(len(row.tokens), self.heads, self.value_dim) for row in self.rows]
        for token, (request, i) in zip(out[0], places, strict=True):
            results[request][i] = token
        return results

    def check(self, **features: object) -> None:
        """Compare `run` with the reference, and the pool with what should have been stored."""
        reference = {"sliding_window": "window", "s_aux": "sinks"}
        named = {reference.get(name, name): value for name, value in features.items()}
        named.setdefault("scaling", self.queries[0].shape[-1] ** -0.5)
        for result, query, key, value in zip(
            self.run(**features), self.queries, self.keys, self.values, strict=True
        ):
            expected = reference_attention(query, key, value, **named)
            torch.testing.assert_close(result.double(), expected, atol=2e-5, rtol=2e-5)
        for row, key, value in zip(self.rows, self.keys, self.values, strict=True):
            pages = list(row.pages)
            torch.testing.assert_close(
                self.pool.keys[LAYER][pages].flatten(0, 1)[: len(key)], key, atol=0, rtol=0
            )
            torch.testing.assert_close(
                self.pool.values[LAYER][pages].flatten(0, 1)[: len(key)], value, atol=0, rtol=0
            )


MIXED = [(0, 9), (17, 1), (0, 1), (8, 5), (3, 6), (40, 1), (41, 1), (16, 16), (7, 1)]
"""Prefill from scratch, decode, a first token, chunks on cached prefixes that do and do not end at a page."""


@pytest.mark.parametrize("layout", ["scattered", "contiguous"])
@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_mixed_batch(generator, page_size, layout):
    Batch(MIXED, generator, page_size=page_size, layout=layout).check()


@pytest.mark.parametrize("window", [1, 3, 8, 16, 41, 1000])
def test_sliding_window(generator, window):
    Batch(MIXED, generator).check(sliding_window=window)


@pytest.mark.parametrize("softcap", [0.5, 20.0])
def test_softcap(generator, softcap):
    Batch(MIXED, generator).check(softcap=softcap, scaling=1.5)


def test_sinks(generator):
    Batch(MIXED, generator).check(s_aux=torch.randn(6, generator=generator))


def test_all_features_together(generator):
    sinks = torch.randn(6, generator=generator)
    Batch(MIXED, generator).check(s_aux=sinks, softcap=2.0, sliding_window=6, scaling=0.9)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (8, 2), (5, 1)])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_grouped_heads(generator, heads, kv_heads, softcap):
    features = {} if softcap is None else {"softcap": softcap}
    Batch(MIXED, generator, heads=heads, kv_heads=kv_heads).check(**features)


@pytest.mark.parametrize(("key_dim", "value_dim"), [(24, 16), (8, 40)])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_key_and_value_dims_differ(generator, key_dim, value_dim, softcap):
    features = {} if softcap is None else {"softcap": softcap}
    Batch(MIXED, generator, key_dim=key_dim, value_dim=value_dim).check(**features)


@pytest.mark.parametrize("request_", [(0, 1), (30, 1), (0, 30), (30, 30)])
@pytest.mark.parametrize("window", [None, 5])
def test_single_request(generator, request_, window):
    Batch([request_], generator).check(sliding_window=window)


def test_chunk_longer_than_a_query_block(generator):
    requests = [(37, 600), (0, 300)]
    batch = Batch(requests, generator, page_size=16, heads=2, kv_heads=1, key_dim=8, value_dim=8)
    batch.check()
    batch.check(sliding_window=290)


@pytest.mark.parametrize("layout", ["scattered", "contiguous"])
def test_decode_beyond_what_is_gathered_together(generator, layout):
    """Contexts on both sides of the limits on a shared call: many short ones, some long ones."""
    lengths = [5, 80, 81, 90, 200, 210, 600, 700, 700, 5, 5]
    batch = Batch(
        [(n, 1) for n in lengths], generator, kv_heads=8, heads=8, key_dim=64, value_dim=64, layout=layout
    )
    groups = ForwardContext(batch.rows, batch.memory).batch(Attention.FULL).work(None).decode
    assert 1 < len(groups) < len(lengths)
    batch.check()


def test_batch_composition_does_not_matter(generator):
    """What a request gets does not depend on whom it is computed with, but for rounding."""
    batch = Batch(MIXED, generator)
    together = batch.run()
    for i, expected in enumerate(together):
        row, queries, keys, values = batch.rows[i], batch.queries[i], batch.keys[i], batch.values[i]
        alone = Batch([(row.start, len(row.tokens))], generator)
        alone.queries, alone.keys, alone.values, alone.memory = [queries], [keys], [values], batch.memory
        alone.rows = [Row(tuple(range(len(row.tokens))), row.start, row.pages, True)]
        torch.testing.assert_close(alone.run()[0], expected, atol=1e-5, rtol=1e-5)


def test_metadata_is_built_once_for_all_layers(generator):
    batch = Batch(MIXED, generator)
    context = ForwardContext(batch.rows, batch.memory).batch(Attention.FULL)
    assert context.work(None) is context.work(None)
    assert context.work(8) is not context.work(None)


def test_a_mask_of_the_model_is_refused(generator):
    batch = Batch([(0, 2)], generator)
    q, k = torch.zeros(1, 6, 2, 16), torch.zeros(1, 2, 2, 16)
    with (
        forwarding(ForwardContext(batch.rows, batch.memory)),
        pytest.raises(ValueError, match="mask of its own"),
    ):
        paged_attention(SimpleNamespace(), q, k, k, torch.zeros(1, 1, 2, 2))


def test_outside_a_forward():
    with pytest.raises(RuntimeError, match="outside a forward"):
        current_forward()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row((), 3, (0,), True), "needs a token"),
        (Row((1, 2), 3, (0,), True), "needs 2 pages"),
        (Row((1,), 3, (0, 1), True), "needs 1 pages"),
        (Row((1,), 0, (9,), True), "not all slots"),
        (Row((1,), 0, (-1,), True), "not all slots"),
    ],
)
def test_rows_that_do_not_fit_are_refused(row, message):
    with pytest.raises(ValueError, match=message):
        ForwardContext([row], memory_of([LayerShape(1, 8, 8)], 4, 4))


def test_context_orders_and_finds_last_tokens():
    rows = [
        Row((1, 2, 3), 4, (3, 0), True),
        Row((4,), 7, (1, 2), True),
        Row((5, 6), 0, (4,), False),
        Row((7,), 2, (8,), True),
    ]
    context = ForwardContext(rows, memory_of([LayerShape(1, 8, 8)], 9, 4))
    assert context.tokens.tolist() == [7, 4, 5, 6, 1, 2, 3]
    assert context.positions.tolist() == [2, 7, 0, 1, 4, 5, 6]
    assert context.last.tolist() == [6, 1, 0]
    assert context.batch(Attention.FULL).write.tolist() == [34, 11, 16, 17, 0, 1, 2]
