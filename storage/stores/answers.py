"""The words a store answers in: an outcome per key, where it has put a page, and what it counts."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from stratakv.storage.header import BlockHeader
from stratakv.storage.layout import BlockLayout, Group
from stratakv.storage.tiers import Component, PageKey


class Shelf(NamedTuple):
    """Where a store keeps the blocks of one component and group. Written `full/g0of1`."""

    component: Component
    group: Group

    @classmethod
    def of(cls, layout: BlockLayout) -> "Shelf":
        """The shelf on which blocks of `layout` lie."""
        return cls(layout.component, layout.group)

    def __str__(self) -> str:
        return f"{self.component}/{self.group}"


class Failure(StrEnum):
    """Why a key has failed. A failure says nothing about whether the page is stored."""

    NO_ROOM = "no room"
    """The store is full, and collection could not help."""
    NO_PARENT = "no parent"
    """The page before this one is not stored, so this one could never be restored. Write that one first."""
    BAD_BLOCK = "bad block"
    """The caller's block is not sealed, speaks of another page, or has changed since it was sealed."""
    SHORT_ANSWER = "short answer"
    """The store did not say what became of this key."""
    CLOSED = "closed"
    """The store was closed before or meanwhile."""
    ERROR = "error"
    """The store said no; the detail is what it said."""


class Get(StrEnum):
    """What became of a key that was read."""

    HIT = "hit"
    """The block is the caller's: verified from its magic to its checksum."""
    MISS = "miss"
    CORRUPT = "corrupt"
    """Something else was stored under this key. It is quarantined and was counted; compute the page again."""
    FAILED = "failed"


class Put(StrEnum):
    """What became of a key that was written."""

    WRITTEN = "written"
    PRESENT = "present"
    """It was stored before and has been left as it was."""
    FAILED = "failed"


class Removal(StrEnum):
    """What became of a key that was deleted."""

    DELETED = "deleted"
    MISS = "miss"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Got:
    """The outcome of reading one key; `failure` goes with FAILED, `detail` says more to people."""

    outcome: Get
    failure: Failure | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of writing one key; `failure` goes with FAILED, `detail` says more to people."""

    outcome: Put
    failure: Failure | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block as it lies in a store: its place, its `size` in bytes, when it was last used (seconds since the epoch),
    and what it says of itself, or None if that cannot be read."""

    shelf: Shelf
    key: PageKey
    size: int
    last_used: float
    header: BlockHeader | None


@dataclass(frozen=True, slots=True)
class Usage:
    """What lies in a store, over all identities. `size` and `capacity` are bytes; `pages` count once however many
    components and groups they have. `orphans` are pages below the first whose parent is not stored. `collected` counts
    pages that this process took out to make room."""

    pages: int
    size: int
    capacity: int
    orphans: int
    collected: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What one process has asked of a store since it opened it, in blocks, and what the store last knew of itself."""

    hits: int
    misses: int
    corrupt: int
    get_failed: int
    written: int
    present: int
    put_failed: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class ForeignPages:
    """Pages of another identity in the same store. `identity` is its JSON, or None if it says nothing readable."""

    digest: str
    identity: bytes | None
    pages: int
