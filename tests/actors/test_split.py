"""How heads are dealt out over ranks."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stratakv.actors.worker.split import HeadSplit, Indivisible, split_of
from stratakv.kernels.shapes import LayerShape

sizes = st.integers(1, 8)


@given(kv_heads=sizes, queries=sizes, ranks=sizes)
def test_each_query_head_is_where_its_kv_head_is(kv_heads: int, queries: int, ranks: int):
    heads = kv_heads * queries
    try:
        split = HeadSplit(heads, kv_heads, ranks)
    except Indivisible:
        assert heads % ranks or (kv_heads % ranks and ranks % kv_heads)
        return
    each, kept = heads // ranks, kv_heads // split.groups
    for rank in range(ranks):
        here = range(split.kv_head(rank), split.kv_head(rank) + kept)
        needed = {query // queries for query in range(rank * each, (rank + 1) * each)}
        assert needed == set(here)


@given(kv_heads=sizes, ranks=sizes, factor=sizes)
def test_every_stored_share_is_written_by_exactly_one_rank(kv_heads: int, ranks: int, factor: int):
    assume(kv_heads % ranks == 0 or ranks % kv_heads == 0)
    split = HeadSplit(kv_heads * ranks, kv_heads, ranks)
    stored = split.groups * factor
    if kv_heads % stored:
        with pytest.raises(ValueError, match=r"store\.head_groups is .* tensor_parallel is"):
            split.stored_groups(0, stored)
        return
    written = [g for rank in range(ranks) if split.writes(rank) for g in split.stored_groups(rank, stored)]
    assert written == list(range(stored))


def test_by_default_there_is_a_stored_share_for_each_rank_or_kv_head():
    assert [list(HeadSplit(8, 4, 2).stored_groups(rank, None)) for rank in range(2)] == [[0], [1]]
    assert [list(HeadSplit(8, 2, 4).stored_groups(rank, None)) for rank in range(4)] == [[0], [0], [1], [1]]
    assert list(HeadSplit(8, 4, 1).stored_groups(0, 2)) == [0, 1]


def test_shapes_of_the_whole_model():
    assert HeadSplit(9, 3, 3).whole([LayerShape(1, 64, 64)] * 2) == [LayerShape(3, 64, 64)] * 2
    assert HeadSplit(9, 3, 9).whole([LayerShape(1, 64, 64)]) == [LayerShape(3, 64, 64)]


@pytest.mark.parametrize(
    ("config", "ranks", "words"),
    [
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, 2, "9 attention heads and 3 KV heads.* 1, 3, 9 ranks"),
        ({"text_config": {"num_attention_heads": 4}}, 3, "4 attention heads and 4 KV heads.* 1, 2, 4 ranks"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_divide_are_refused_with_those_that_do(config, ranks, words):
    with pytest.raises(Indivisible, match=f"tensor_parallel is {ranks}.*{words}"):
        split_of(config, ranks)


def test_a_config_that_says_nothing_of_heads_is_left_to_others():
    assert split_of({"model_type": "x"}, 2) is None
