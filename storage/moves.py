"""What the hierarchy orders: moves as data. The tree decides, an executor carries out and reports.

Copies between device and host are numbered and done in order. Reads from and writes to the store take their time; each
occupies a slot, in which every rank reports how far it is.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, Union

import msgspec

from stratakv.storage.tiers import Component

PREFETCH_SLOTS = 64
"""Reads from the store that may run at once; further ones queue at the head."""
WRITE_SLOTS = 32
"""Batches of store writes that may run at once."""
WRITE_BATCH = 128
"""Pages in one batch of store writes at most."""


class Direction(StrEnum):
    """Which way a copy goes between the device and the host pool."""

    LOAD = "load"
    """host to device"""
    BACKUP = "backup"
    """device to host"""


class Area(StrEnum):
    """A kind of slot in which ranks report."""

    PREFETCH = "prefetch"
    WRITE = "write"


class PageStamp(msgspec.Struct, frozen=True, array_like=True):
    """What the header of a host block says of its page: its key, its parent's key (empty at the root), its depth in
    pages (the first page of a history has depth 1), and the digest of its namespace (empty for none)."""

    key: bytes
    parent: bytes
    depth: int
    namespace: bytes


class Copy(msgspec.Struct, frozen=True, array_like=True, tag="copy"):
    """Copy number `number`: page i goes between `device_slots[i]` and `host_slots[i]`. `stamps` come with a backup."""

    number: int
    direction: Direction
    component: Component
    device_slots: tuple[int, ...]
    host_slots: tuple[int, ...]
    stamps: tuple[PageStamp, ...] = ()


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Occupy prefetch slot `slot` and read page i from the store into `host_slots[i]`, in order, as far as it goes."""

    slot: int
    component: Component
    host_slots: tuple[int, ...]
    stamps: tuple[PageStamp, ...]


class Write(msgspec.Struct, frozen=True, array_like=True, tag="write"):
    """Occupy write slot `slot` and put the block in `host_slots[i]` into the store under its stamp, in order."""

    slot: int
    component: Component
    host_slots: tuple[int, ...]
    stamps: tuple[PageStamp, ...]


class Cut(msgspec.Struct, frozen=True, array_like=True, tag="cut"):
    """Issue no new read in this prefetch slot."""

    slot: int


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """The end of what occupied this slot has been taken in; it may be occupied anew, in the same plan even."""

    area: Area
    slot: int


Order = Union[Copy, Read, Write, Cut, Release]  # noqa: UP007 - msgspec decodes a typing.Union


@dataclass(frozen=True, slots=True)
class SlotProgress:
    """What is agreed of one slot.

    `done` pages are landed or written on every rank; `ended` says that some rank will add no more; `drained`
    that nothing of it is queued or running on any rank, which makes `done` final.
    """

    done: int
    ended: bool
    drained: bool


class Progress(Protocol):
    """What every rank has finished, as agreed."""

    @property
    def copied_upto(self) -> int:
        """Copies 1 .. this have ended on all ranks."""

    def slot(self, area: Area, slot: int) -> SlotProgress:
        """How far the occupant of a slot is."""


class Executor(Protocol):
    """Who carries moves out: tensors in a worker, nothing in the replay, failures at will in the property test."""

    def submit(self, order: Order) -> None:
        """Take an order. It may be carried out later, copies in order of their numbers; it must not be refused."""

    def progress(self) -> Progress:
        """What has been agreed so far. Never goes back."""
