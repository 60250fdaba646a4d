"""What the hierarchy orders: moves as data. The tree decides, an executor carries out and reports."""

from enum import StrEnum
from typing import Protocol

import msgspec

from stratakv.storage.tiers import Component


class Direction(StrEnum):
    """Which way a copy goes between the device and the host pool."""

    LOAD = "load"
    """host to device"""
    BACKUP = "backup"
    """device to host"""


class PageStamp(msgspec.Struct, frozen=True, array_like=True):
    """What the header of a host block says of its page: its key, its parent's key (empty at the root), its depth in
    pages (the first page of a history has depth 1), and the digest of its namespace (empty for none)."""

    key: bytes
    parent: bytes
    depth: int
    namespace: bytes


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """Copy number `number`: page i goes between `device_slots[i]` and `host_slots[i]`. `stamps` come with a
    backup."""

    number: int
    direction: Direction
    component: Component
    device_slots: tuple[int, ...]
    host_slots: tuple[int, ...]
    stamps: tuple[PageStamp, ...] = ()


class Progress(msgspec.Struct, frozen=True):
    """What every rank has finished, as agreed. Copies 1 .. `copied_upto` have ended on all of them."""

    copied_upto: int


class Executor(Protocol):
    """Who carries moves out: tensors in a worker, nothing in the replay, failures at will in the property test."""

    def submit(self, copy: Copy) -> None:
        """Take an order. It may be carried out later, in order of numbers; it must not be refused."""

    def progress(self) -> Progress:
        """What has been agreed so far. Never goes back."""
