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
"""Blocks in one batch of store writes at most."""


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


class PageStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the header of a host block says of its page: its key, its parent's key (empty at the root), its depth in
    pages (the first page of a history has depth 1), and the digest of its namespace (empty for none)."""

    key: bytes
    parent: bytes
    depth: int
    namespace: bytes


class Copy(msgspec.Struct, frozen=True, array_like=True, tag="copy"):
    """Copy number `number`: block i goes between device and `host_slots[i]`. `stamps` come with a backup.

    `device_slots` are as many slots of the component's pool, with one exception: a checkpoint is backed up from
    `len(device_slots) / len(host_slots)` places each, and loaded straight into a working slot of the recurrent pool.
    """

    number: int
    direction: Direction
    component: Component
    device_slots: tuple[int, ...]
    host_slots: tuple[int, ...]
    stamps: tuple[PageStamp, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """Save the state in working slot `state` as a checkpoint in `places`. Done in order with the copies, on the
    device alone."""

    state: int
    places: tuple[int, ...]


class Restore(msgspec.Struct, frozen=True, array_like=True, tag="restore"):
    """Put the checkpoint in `places` into working slot `state`; the checkpoint itself is never written. In order with
    the copies."""

    places: tuple[int, ...]
    state: int


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Blocks of one component: block i lies in host slot `host_slots[i]` and is that of `stamps[i]`."""

    component: Component
    host_slots: tuple[int, ...]
    stamps: tuple[PageStamp, ...]


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Occupy prefetch slot `slot` and read `parts` from the store, block after block, as far as it goes."""

    slot: int
    parts: tuple[Part, ...]


class Write(msgspec.Struct, frozen=True, array_like=True, tag="write"):
    """Occupy write slot `slot` and put the blocks of `parts` into the store under their stamps, one after another."""

    slot: int
    parts: tuple[Part, ...]


class Cut(msgspec.Struct, frozen=True, array_like=True, tag="cut"):
    """Issue no new read in this prefetch slot."""

    slot: int


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """The end of what occupied this slot has been taken in; it may be occupied anew, in the same plan even."""

    area: Area
    slot: int


Order = Union[Copy, Snapshot, Restore, Read, Write, Cut, Release]  # noqa: UP007 - msgspec decodes a typing.Union


@dataclass(frozen=True, slots=True)
class SlotProgress:
    """What is agreed of one slot.

    `done` blocks, in the order of the parts, are landed or written on every rank; `ended` says that some rank will add
    no more; `drained` that nothing of it is queued or running on any rank, which makes `done` final.
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
