"""Layers that see a window live in a pool of their own, of which a row names only the pages that are still seen."""

from types import SimpleNamespace

import pytest
import torch
from attention_reference import reference_attention

from stratakv.cluster.plan import Row
from stratakv.kernels.attention import paged_attention
from stratakv.kernels.context import ForwardContext, forwarding
from stratakv.kernels.forward_cache import ForwardCache
from stratakv.kernels.memory import DeviceMemory
from stratakv.kernels.shapes import Attention, LayerShape, ModelShapes, Place

PAGE = 4
WINDOW = 10
SHAPE = LayerShape(2, 8, 6)
SHAPES = ModelShapes(
    full=(LayerShape(1, 4, 4),),
    sliding=(LayerShape(1, 4, 4), SHAPE),
    window=WINDOW,
    places={0: Place(Attention.SLIDING, 0), 1: Place(Attention.FULL, 0), 2: Place(Attention.SLIDING, 1)},
)
LAYER = 2


def memory() -> DeviceMemory:
    built = DeviceMemory.build(SHAPES, full=44, sliding=29, page_size=PAGE, dtype=torch.float32)
    for pool in (built.full, built.sliding):
        for tensor in (*pool.keys, *pool.values):
            tensor.fill_(float("nan"))
    return built


def pages_of(tokens: int) -> int:
    return -(-tokens // PAGE)


@pytest.mark.parametrize("window", [WINDOW, 3])
@pytest.mark.parametrize("spare", [0, 1])
def test_a_row_needs_no_page_before_its_window(window, spare):
    """Cached and new tokens of several requests; `spare` pages more than needed may be given, never fewer."""
    requests = [(25, 1), (0, 1), (30, 7), (0, 30), (16, 1), (40, 12)]
    built = memory()
    free, unused, rows, texts = torch.randperm(29).tolist(), list(range(44)), [], []
    for request, (cached, new) in enumerate(requests):
        count = pages_of(cached + new)
        needed = count - max(0, cached - WINDOW + 1) // PAGE
        held = min(count, needed + (spare if request in (0, 2) else 0))
        window_slots, free = free[:held], free[held:]
        pages, unused = unused[:count], unused[count:]
        keys, values = torch.randn(cached + new, 2, 8), torch.randn(cached + new, 2, 6)
        absent = (count - held) * PAGE
        for position in range(absent, cached):
            row = window_slots[position // PAGE - (count - held)] * PAGE + position % PAGE
            built.sliding.key_rows[1][row] = keys[position]
            built.sliding.value_rows[1][row] = values[position]
        ids = tuple(100 * request + i for i in range(new))
        rows.append(Row(ids, cached, tuple(pages), True, tuple(window_slots)))
        texts.append((torch.randn(new, 4, 8), keys, values))
    context = ForwardContext(rows, built)
    places = [divmod(token, 100) for token in context.tokens.tolist()]
    query = torch.stack([texts[r][0][i] for r, i in places]).transpose(0, 1)[None]
    key = torch.stack([texts[r][1][requests[r][0] + i] for r, i in places]).transpose(0, 1)[None]
    value = torch.stack([texts[r][2][requests[r][0] + i] for r, i in places]).transpose(0, 1)[None]
    with forwarding(context):
        ForwardCache(context).update(key, value, LAYER)
        out, _ = paged_attention(SimpleNamespace(), query, key, value, None, sliding_window=window)
    for (r, i), got in zip(places, out[0], strict=True):
        cached = requests[r][0]
        queries, keys, values = texts[r]
        expected = reference_attention(
            queries[i : i + 1], keys[: cached + i + 1], values[: cached + i + 1], 8**-0.5, window=window
        )
        torch.testing.assert_close(got.double(), expected[0], atol=2e-5, rtol=2e-5)
    assert all(tensor.isnan().all() for tensor in (*built.full.keys, *built.full.values))
    assert built.sliding.keys[0].isnan().all()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row((1,), 25, tuple(range(7)), True, (0, 1)), "needs 3 to 7 pages of its window, not 2"),
        (Row((1,), 25, tuple(range(7)), True, tuple(range(8))), "needs 3 to 7 pages of its window, not 8"),
        (Row((1,), 25, tuple(range(7)), True), "not 0"),
        (Row((1,), 25, tuple(range(7)), True, (0, 1, 29)), "window .* are not all slots of a pool of 29"),
        (Row((1, 2, 3, 4, 5), 12, tuple(range(5)), True, (0, 1, 2, 3)), "needs 5 to 5 pages"),
    ],
)
def test_windows_that_do_not_fit_are_refused(row, message):
    with pytest.raises(ValueError, match=message):
        ForwardContext([row], memory())
