from array import array
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratakv.storage.keys import chain, namespace_seed, page_key

PLAIN = [
    "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72",
    "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6",
]
PLAIN_TAIL = "6dc571acd2ccb712fb7a8b13854443ded3fba409ddd9aa84849d3840c1547ca3"
WIDE = "4775a3d17f37dba78a63049c5df850afba007a7a81f0611c1cafde30a3b0ea5e"
EXTRA_A_SEED = "ad5aea43603f2a5d7b3cb72eb67799416dc43601e325d412f7afecb939b9046f"
EXTRA_A = [
    "49367534c8ac27a70449d5450b186a436c49aea1b59db4641466d21d7cda0f21",
    "33883d01348748d2a67f80392b316bfd02ac89b79a70683114f43f4d2468353e",
]
SALT_S_SEED = "c825a7fb5423c8a6cc5990d09f8ca69181b05fdffd804c10db403e9e52699f6b"
SALT_S = [
    "3c1af139207cc370e3e1301de86b803c9991780f62b27410d259d68c09bea59c",
    "45c778bb698d1853cad329e92af3c97ab6b9cfdcebf6c58a6fb83cbf40930a88",
]


def hexes(keys):
    return [key.hex() for key in keys]


def naive(tokens, page_size, after):
    """The formula, word for word and token for token."""
    keys = []
    for start in range(0, len(tokens) - page_size + 1, page_size):
        page = tokens[start : start + page_size]
        if max(page) > 2**32 - 1:
            words = b"\xff" + b"".join(token.to_bytes(8, "little") for token in page)
        else:
            words = b"".join(token.to_bytes(4, "little") for token in page)
        after = sha256(after + words).digest()
        keys.append(after)
    return keys


def test_golden_plain_chain_has_full_pages_only():
    assert hexes(chain(list(range(1, 11)), 4)) == PLAIN


def test_golden_short_page():
    assert page_key([9, 10], chain(range(1, 9), 4)[-1]).hex() == PLAIN_TAIL


def test_golden_wide_token():
    assert hexes(chain([1, 2**40, 3, 4], 4)) == [WIDE]


@pytest.mark.parametrize(
    ("extra_key", "cache_salt", "seed", "keys"),
    [("a", None, EXTRA_A_SEED, EXTRA_A), (None, "s", SALT_S_SEED, SALT_S)],
)
def test_golden_namespaces(extra_key, cache_salt, seed, keys):
    after = namespace_seed(extra_key, cache_salt)
    assert after.hex() == seed
    assert hexes(chain(list(range(1, 9)), 4, after)) == keys


def test_no_namespace_is_no_seed_and_every_other_pair_is_its_own():
    values = [None, "", "a", "b", "ab"]
    seeds = {namespace_seed(extra, salt) for extra in values for salt in values}
    assert namespace_seed(None, None) == b""
    assert len(seeds) == len(values) ** 2


token_ids = st.one_of(st.integers(0, 200_000), st.sampled_from([2**32 - 1, 2**32, 2**64 - 1]))


@settings(deadline=None, max_examples=60)
@given(st.lists(token_ids, max_size=40), st.integers(1, 9), st.sampled_from([b"", b"s" * 32]))
def test_chain_equals_the_naive_formula(tokens, page_size, after):
    assert chain(tokens, page_size, after) == naive(tokens, page_size, after)


@settings(deadline=None, max_examples=60)
@given(st.lists(token_ids, min_size=1, max_size=40), st.integers(1, 5), st.data())
def test_chain_can_go_on_from_any_page(tokens, page_size, data):
    keys = chain(tokens, page_size)
    done = data.draw(st.integers(0, len(keys)))
    after = keys[done - 1] if done else b""
    assert keys[:done] + chain(tokens[done * page_size :], page_size, after) == keys


def test_every_kind_of_sequence_gives_the_same_keys():
    tokens = list(range(1, 11))
    kinds = [tuple(tokens), range(1, 11), array("I", tokens), array("q", tokens)]
    kinds += [np.array(tokens, dtype) for dtype in ("u4", "<i8", ">u4", "i4")]
    kinds.append(np.repeat(np.array(tokens, np.uint32), 2)[::2])
    for kind in kinds:
        assert hexes(chain(kind, 4)) == PLAIN, kind


def test_wide_numpy_tokens_are_not_wrapped():
    assert hexes(chain(np.array([1, 2**40, 3, 4]), 4)) == [WIDE]


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_a_token_that_is_no_id_is_named(bad):
    with pytest.raises(ValueError, match=f"{bad} is no token id"):
        chain([1, 2, bad, 4], 2)


def test_page_size_below_one():
    with pytest.raises(ValueError, match="page_size is 0"):
        chain([1], 0)


def test_fewer_tokens_than_a_page_have_no_key():
    assert chain([1, 2, 3], 4) == []
    assert chain([], 4) == []
