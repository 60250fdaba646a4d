"""Counting what lies in the directory of a file store, with all that collection must know about it."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import NamedTuple

from stratakv.storage.header import peek_header
from stratakv.storage.stores import folder
from stratakv.storage.tiers import PageKey

_HEAD = 4096
_ABANDONED = 600.0
"""Seconds after which what a writer has not touched has no writer any more."""


class Lineage(NamedTuple):
    """What never changes about a page, whatever its identity: its key says it all."""

    parent: bytes
    depth: int


UNKNOWN = Lineage(b"", 0)


@dataclass(slots=True)
class FoundPage:
    """A page of one identity with all its blocks: `used` is its last use in ns, `size` its bytes."""

    lineage: Lineage
    used: int = 0
    size: int = 0
    paths: list[str] = field(default_factory=list)


class Leftover(NamedTuple):
    """A file that is no page: of a writer that died, or quarantined."""

    path: str
    size: int


@dataclass(slots=True)
class Census:
    """Pages by the digest of their identity followed by their key. `size` is all bytes, quarantine included."""

    pages: dict[bytes, FoundPage] = field(default_factory=dict)
    quarantined: list[Leftover] = field(default_factory=list)
    size: int = 0

    def has(self, name: bytes, path: str) -> bool:
        """Whether the block `path` of the page `name` was counted."""
        return name in self.pages and path in self.pages[name].paths

    def parent_of(self, name: bytes) -> bytes:
        """The name that the parent of the page `name` has, stored or not."""
        return name[:32] + self.pages[name].lineage.parent


def take_census(root: Path, known: dict[PageKey, Lineage], pause: Callable[[], None]) -> Census:
    """Look at every file below `root`, and delete what writers that died have left. OSError.

    Lineages that are not in `known` are read from the blocks, and added. `pause` is called once per folder; what it
    raises ends the census.
    """
    census = Census()
    for home in folder.homes(root):
        digest = bytes.fromhex(os.path.basename(home))
        for shelf, _ in folder.shelves(home):
            for path in folder.fan_out(shelf):
                pause()
                for entry in folder.blocks(path):
                    with suppress(FileNotFoundError):
                        _count(census, digest, entry, known)
        _count_leftovers(census, home)
    return census


def _count(census: Census, digest: bytes, entry: "os.DirEntry[str]", known: dict[PageKey, Lineage]) -> None:
    stat = entry.stat(follow_symlinks=False)
    key = bytes.fromhex(entry.name)
    lineage = known.get(key) or _read_lineage(entry.path, stat.st_size)
    if lineage is not UNKNOWN:
        known[key] = lineage
    page = census.pages.setdefault(digest + key, FoundPage(lineage))
    page.lineage = max(page.lineage, lineage)  # known, if one of its blocks is sound
    page.used = max(page.used, stat.st_mtime_ns)
    page.size += stat.st_size
    page.paths.append(entry.path)
    census.size += stat.st_size


def _read_lineage(path: str, size: int) -> Lineage:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        header = peek_header(os.pread(descriptor, _HEAD, 0), size)
    finally:
        os.close(descriptor)
    return UNKNOWN if header is None else Lineage(header.parent, header.depth)


def _count_leftovers(census: Census, home: str) -> None:
    for name in ("tmp", "nonces", "grants"):
        for entry in folder.entries(f"{home}/{name}"):
            with suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_mtime < time() - _ABANDONED:
                    os.unlink(entry.path)
    for entry in folder.entries(f"{home}/quarantine"):
        with suppress(FileNotFoundError):
            size = entry.stat(follow_symlinks=False).st_size
            census.quarantined.append(Leftover(entry.path, size))
            census.size += size
