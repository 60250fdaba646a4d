"""The token map: from text to the tokens that made it, so that a growing conversation stays token-exact.

A model may write a text in other tokens than a tokenizer would, and then the next turn, encoded anew, would miss the
KV of the last. So what was sent and said is remembered by its text, and a new prompt that starts with a known text
takes the known tokens for it (step 1 in the life of a request).

Each known text is a node: the tokens since its parent, which is a shorter known text. No text is kept. A node is
found by a digest of its text up to the last multiple of `STRIDE` characters and the few characters after it, so a
lookup costs one digest per stride of the new text, however much is known.
"""

from __future__ import annotations  # array[int] is no type before Python 3.12

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from stratakv.cluster.metrics import MapOutcome

STRIDE = 256
_NODE_BYTES = 480  # a node, its place in the order and in its bucket
_TENANT_BYTES = 1024


class Mark(NamedTuple):
    """A place where a text may be cut: after `characters` of it, which `tokens` tokens made."""

    characters: int
    tokens: int
    kind: MapOutcome


class _Node:
    """A known text. Compared by identity: the same text may have been made of other tokens once."""

    __slots__ = ("ids", "kind", "parent", "place")

    def __init__(self, parent: _Node | None, ids: array[int], place: _Place, kind: MapOutcome):
        self.parent = parent
        self.ids = ids
        self.place = place
        self.kind = kind

    def all_ids(self) -> array[int]:
        """The tokens of the whole text."""
        parts: list[array[int]] = []
        node: _Node | None = self
        while node is not None:
            parts.append(node.ids)
            node = node.parent
        ids = array("I")
        for part in reversed(parts):
            ids.extend(part)
        return ids

    def cost(self) -> int:
        """Bytes of memory, about."""
        return _NODE_BYTES + 4 * len(self.ids) + len(self.place.tail)


class _Place(NamedTuple):
    """Where a text is found: the digest of its full strides, and the rest of it."""

    digest: bytes
    tail: str


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known text that a new one starts with."""

    characters: int
    ids: array[int]
    kind: MapOutcome
    node: _Node


def prefix_digests(text: str, known: Sequence[bytes] = ()) -> list[bytes]:
    """Digest k names `text[: k * STRIDE]`, for every full stride. `known` are those of a prefix of it."""
    digests = list(known) or [b""]
    for start in range((len(digests) - 1) * STRIDE, len(text) - STRIDE + 1, STRIDE):
        stride = text[start : start + STRIDE].encode("utf-8", "surrogatepass")
        digests.append(blake2b(digests[-1] + stride, digest_size=16).digest())
    return digests


class TokenMap:
    """The token map of one tenant, bounded by `max_bytes`; the text used longest ago is forgotten first."""

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._buckets: dict[bytes, dict[str, _Node]] = {}
        # A node is moved to the end before its parent is. So no parent is older than a child, and the oldest node is
        # a leaf that nothing needs.
        self._order: OrderedDict[_Node, None] = OrderedDict()
        self.bytes = 0
        """Memory in use, about."""

    def __len__(self) -> int:
        return len(self._order)

    def lookup(self, text: str, digests: Sequence[bytes], may_cut: Callable[[int], bool]) -> Match | None:
        """The longest known text that `text` starts with and may be cut after; None if there is none.

        `digests` are `prefix_digests(text)`. Counts as a use of what is found.
        """
        for full in range(len(digests) - 1, -1, -1):
            bucket = self._buckets.get(digests[full])
            if bucket is None:
                continue
            start = full * STRIDE
            for end in range(min(len(text), start + STRIDE - 1), start - 1, -1):
                node = bucket.get(text[start:end])
                if node is not None and may_cut(end):
                    self._touch(node)
                    return Match(end, node.all_ids(), node.kind, node)
        return None

    def store(
        self, text: str, digests: Sequence[bytes], ids: array[int], marks: Sequence[Mark], base: Match | None
    ) -> None:
        """Remember the prefixes of `text` that end at `marks` (ascending, beyond `base`) as made by those of `ids`.

        `base` is what was matched when `ids` came about, and `ids` begin with its own. Forgets what no longer fits.
        """
        node, done = None, 0
        if base is not None and base.node in self._order:
            node, done = base.node, len(base.ids)
        for mark in marks:
            full = mark.characters // STRIDE
            place = _Place(digests[full], text[full * STRIDE : mark.characters])
            node = self._put(node, ids[done : mark.tokens], place, mark.kind)
            done = mark.tokens
        if node is not None:
            self._touch(node)
        while self.bytes > self._max_bytes:
            self._forget(next(iter(self._order)))

    def _put(self, parent: _Node | None, ids: array[int], place: _Place, kind: MapOutcome) -> _Node:
        bucket = self._buckets.setdefault(place.digest, {})
        old = bucket.get(place.tail)
        if old is not None and old.parent is parent and old.ids == ids:
            return old
        # The newest tokens of a text win. An older node stays for those that build on it, until it is forgotten.
        bucket[place.tail] = node = _Node(parent, ids, place, kind)
        self._order[node] = None
        self.bytes += node.cost()
        return node

    def _touch(self, node: _Node | None) -> None:
        while node is not None:
            self._order.move_to_end(node)
            node = node.parent

    def _forget(self, node: _Node) -> None:
        del self._order[node]
        self.bytes -= node.cost()
        bucket = self._buckets.get(node.place.digest, {})
        if bucket.get(node.place.tail) is node:
            del bucket[node.place.tail]
            if not bucket:
                del self._buckets[node.place.digest]


class TokenMaps:
    """The token maps of all tenants. A tenant has at most `tenant_bytes`; beyond `max_bytes` whole tenants go,
    the one used longest ago first.
    """

    def __init__(self, max_bytes: int, tenant_bytes: int):
        self._max_bytes = max_bytes
        self._tenant_bytes = min(tenant_bytes, max_bytes)
        self._tenants: OrderedDict[object, TokenMap] = OrderedDict()
        self.bytes = 0
        """Memory in use, about."""

    def lookup(
        self, tenant: object, text: str, digests: Sequence[bytes], may_cut: Callable[[int], bool]
    ) -> Match | None:
        """See `TokenMap.lookup`. `tenant` is any hashable value that no other tenant has."""
        found = self._tenants.get(tenant)
        if found is None:
            return None
        self._tenants.move_to_end(tenant)
        return found.lookup(text, digests, may_cut)

    def store(
        self,
        tenant: object,
        text: str,
        digests: Sequence[bytes],
        ids: array[int],
        marks: Sequence[Mark],
        base: Match | None,
    ) -> None:
        """See `TokenMap.store`."""
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = TokenMap(self._tenant_bytes)
            self.bytes += _TENANT_BYTES
        self._tenants.move_to_end(tenant)
        self.bytes -= found.bytes
        found.store(text, digests, ids, marks, base)
        self.bytes += found.bytes
        while self.bytes > self._max_bytes and self._tenants:
            self.bytes -= _TENANT_BYTES + self._tenants.popitem(last=False)[1].bytes
