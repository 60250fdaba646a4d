"""The contract of L3: what a store must do. `Store` (store.py) is how it is used.

A backend keeps blocks under names, and what it keeps may be changed by anyone. A worker never talks to it but through
the front, which lets nothing unverified pass in either direction.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from stratakv.storage.header import BlockHeader
from stratakv.storage.identity import Identity
from stratakv.storage.layout import BlockLayout
from stratakv.storage.registry import Registry
from stratakv.storage.stores.answers import ForeignPages, Got, Removal, Shelf, Stored, StoredBlock, Usage
from stratakv.storage.stores.settings import StoreSettings
from stratakv.storage.tiers import PageKey


class Backend(ABC):
    """Keeps blocks by shelf and key, for one identity, within a capacity. Called by several threads at once.

    Answers have one entry per key, in order. A method may raise: the front turns that into a failure of every key.
    """

    @abstractmethod
    def exists(self, shelf: Shelf, keys: Sequence[PageKey]) -> Sequence[bool]:
        """Whether each key is stored. Counts as use: what was just said to be here should not go next."""

    @abstractmethod
    def read(self, shelf: Shelf, keys: Sequence[PageKey], blocks: Sequence[memoryview]) -> Sequence[Got]:
        """Fill each block with what is stored under its key. HIT only if that has exactly the length of the block;
        another length is CORRUPT."""

    @abstractmethod
    def write(
        self, shelf: Shelf, headers: Sequence[BlockHeader], blocks: Sequence[memoryview]
    ) -> Sequence[Stored]:
        """Store each block under the key of its header, in order, unless that is stored: all of it or nothing, also
        when the process dies meanwhile. Blocks are not changed.

        A page of the component `full` whose parent is not stored fails with NO_PARENT. A block that does not fit
        makes room by collection (collect.py), or fails with NO_ROOM.
        """

    @abstractmethod
    def delete(self, shelf: Shelf, keys: Sequence[PageKey]) -> Sequence[Removal]:
        """Take each key out of this shelf."""

    @abstractmethod
    def quarantine(self, shelf: Shelf, key: PageKey) -> None:
        """Take out what is stored under `key` because it is not what it should be, kept for inspection if possible."""

    @abstractmethod
    def scan(self) -> Iterator[StoredBlock]:
        """Every block of this identity. May be slow; what comes and goes meanwhile may be seen or not."""

    @abstractmethod
    def usage(self) -> Usage:
        """What lies in the store, as far as known without looking."""

    @abstractmethod
    def foreign(self) -> Sequence[ForeignPages]:
        """The other identities that have pages here."""

    @abstractmethod
    def remarks(self) -> Sequence[str]:
        """What an operator should know about how the store was opened. May be empty."""

    @abstractmethod
    def write_nonce(self, nonce: str) -> None:
        """Leave a mark that `has_nonce` of every process that shares the store sees. `nonce` is hex digits."""

    @abstractmethod
    def has_nonce(self, nonce: str) -> bool:
        """Whether the mark is here."""

    @abstractmethod
    def close(self) -> None:
        """Give up threads and handles; calls that wait return. Harmless when repeated."""


Opener = Callable[[StoreSettings, Identity, Sequence[BlockLayout]], Backend]
"""Opens the store of `settings` for a rank whose blocks have these layouts. Raises StoreError."""

STORES: Registry[Opener] = Registry("store", "store.url")
"""Openers by URL scheme."""
