"""The last histories that this gateway sent to replicas, by tenant, so that `explain` can say where a prompt parts from
what is cached. Page keys cannot: they are digests.

It is the gateway that remembers, since it has both tokens and tenants: what one tenant said is never shown to another.
Bounded in number and bytes; what is older is forgotten, and what another gateway sent is not known.
"""

from __future__ import annotations  # array[int] is no type before Python 3.12

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from stratakv.api.prompts import Tenant

_ENTRY_BYTES = 300  # an entry and its place in the order


class Nearest(NamedTuple):
    """A remembered history: its first `common` tokens are those of the prompt that was asked for."""

    ids: array[int]
    common: int


class _Entry(NamedTuple):
    tenant: Tenant
    ids: bytes


class RecentPrompts:
    """At most `most` histories and about `max_bytes` of memory; 0 of either remembers nothing. Thread-safe."""

    def __init__(self, most: int, max_bytes: int):
        self._most, self._max_bytes = most, max_bytes
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._next = 0
        self._lock = threading.Lock()
        self.bytes = 0
        """Memory in use, about."""

    def __len__(self) -> int:
        return len(self._entries)

    def remember(self, tenant: Tenant, prompt: array[int], output: Sequence[int]) -> None:
        """`output` was said to `prompt`: pages of both are cached. Shorter histories that this one goes on from are
        dropped, and so is this one if a longer one is known."""
        new = prompt.tobytes() + array("I", output).tobytes()
        with self._lock:
            for number, entry in list(self._entries.items()):
                if entry.tenant != tenant:
                    continue
                if entry.ids.startswith(new):
                    self._entries.move_to_end(number)
                    return
                if new.startswith(entry.ids):
                    self._forget(number)
            self._entries[self._next] = _Entry(tenant, new)
            self._next += 1
            self.bytes += _ENTRY_BYTES + len(new)
            while self._entries and (len(self._entries) > self._most or self.bytes > self._max_bytes):
                self._forget(next(iter(self._entries)))

    def nearest(self, tenant: Tenant, ids: array[int]) -> Nearest | None:
        """The history of `tenant` that begins as `ids` do for longest, the latest of equals; None if there is none."""
        best = None
        for entry in self._of(lambda other: other == tenant):
            common = _common(entry.ids, ids)
            if best is None or common >= best.common:
                best = Nearest(array("I", entry.ids), common)
        return best

    def elsewhere(self, tenant: Tenant, ids: array[int]) -> int:
        """How many first tokens of `ids` came under another namespace too. Only the number is told, and only of
        namespaces that `tenant` could use itself: of its API key, and without a salt or with its own. So nobody finds
        out with it what was said under a salt that he does not know."""
        found = self._of(lambda other: other != tenant and _may_ask(tenant, other))
        return max((_common(entry.ids, ids) for entry in found), default=0)

    def _of(self, wanted: Callable[[Tenant], bool]) -> list[_Entry]:
        with self._lock:
            return [entry for entry in self._entries.values() if wanted(entry.tenant)]

    def _forget(self, number: int) -> None:
        self.bytes -= _ENTRY_BYTES + len(self._entries.pop(number).ids)


def _may_ask(tenant: Tenant, other: Tenant) -> bool:
    return other.api_key == tenant.api_key and other.cache_salt in (None, tenant.cache_salt)


def _common(known: bytes, ids: array[int]) -> int:
    """How many tokens from the start on are equal."""
    one, other = np.frombuffer(known, np.uint32), np.frombuffer(ids, np.uint32)
    shorter = min(len(one), len(other))
    differing = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differing[0]) if len(differing) else shorter
