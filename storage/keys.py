"""Page keys: what names a page of tokens in every tier. Chained at the gateway and again at the head.

A key is the SHA-256 of the previous page's key and the page's own tokens, so it stands for the whole history
up to and including its page. Bit-exact with SGLang's page hashes: chains can be compared, and shared, between
the two.
"""

import sys
from array import array
from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from stratakv.storage.tiers import PageKey

_NAMESPACE_TAG = b"sglang-cache-namespace-v1"
_WIDE_MARK = b"\xff"

Tokens = Sequence[int] | npt.NDArray[np.uint32]
"""Token ids, 0 or more each: a list, tuple, array or one-dimensional numpy array."""


def namespace_seed(extra_key: str | None, cache_salt: str | None) -> bytes:
    """What `chain` starts `after` in this namespace: 32 bytes, or b"" when both are None.

    Two requests share pages only if both values are equal; None and "" differ.
    """
    if extra_key is None and cache_salt is None:
        return b""
    return sha256(_NAMESPACE_TAG + _field(extra_key) + _field(cache_salt)).digest()


def chain(tokens: Tokens, page_size: int, after: bytes = b"") -> list[PageKey]:
    """The keys of the full pages of `tokens`, in order; tokens after the last full page have none.

    `after` is what the first page follows: a namespace seed, or the key of the page before. ValueError for a
    page size below 1 or a token that is no id.
    """
    if page_size < 1:
        raise ValueError(f"page_size is {page_size}; a page has 1 token or more")
    full = len(tokens) - len(tokens) % page_size
    packed = _narrow(tokens[:full])
    keys = []
    if packed is None:
        for start in range(0, full, page_size):
            after = page_key(tokens[start : start + page_size], after)
            keys.append(after)
        return keys
    step = 4 * page_size
    for offset in range(0, len(packed), step):
        after = sha256(after + packed[offset : offset + step]).digest()
        keys.append(after)
    return keys


def page_key(tokens: Tokens, after: bytes = b"") -> PageKey:
    """The key of one page that holds just `tokens`, however many."""
    packed = _narrow(tokens)
    return sha256(after + (_wide(tokens) if packed is None else packed)).digest()


def _narrow(tokens: Tokens) -> bytes | None:
    """u32 little-endian words, or None if one of `tokens` does not fit."""
    if isinstance(tokens, np.ndarray):
        if tokens.dtype == np.uint32:
            return tokens.astype("<u4", copy=False).tobytes()
        tokens = tokens.tolist()
    try:
        words = array("I", tokens)
    except OverflowError:
        return None
    return _little_endian(words)


def _wide(tokens: Tokens) -> bytes:
    """The encoding of a page with a token above 2^32 - 1: a mark, then u64 little-endian words."""
    try:
        return _WIDE_MARK + _little_endian(array("Q", [int(token) for token in tokens]))
    except OverflowError:
        worst = next(token for token in tokens if not 0 <= token < 2**64)
        raise ValueError(f"{worst} is no token id; token ids are 0 or more and below 2^64") from None


def _little_endian(words: "array[int]") -> bytes:
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _field(value: str | None) -> bytes:
    if value is None:
        return b"\x00"
    encoded = value.encode()
    return b"\x01" + len(encoded).to_bytes(8, "little") + encoded
