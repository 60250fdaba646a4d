"""The host memory of one rank: a file in memory, locked for life by the process that writes into it.

A worker opens it once, before it builds its host pool. Memory that is a file outlives the process: the next worker of
the rank finds the blocks as they were. The lock says when that is safe. A process that was stopped and taken for dead
still holds it; then its successor gets a new file, and the stopped one may wake and write where nobody reads.
"""

import errno
import fcntl
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stratakv.storage.settings import format_size

_CHUNK = 16 * 2**20  # between two chunks other threads and signals get their turn
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
_LARGEST_SUFFIX = 99
_MEMORY_TYPES = frozenset({"tmpfs", "hugetlbfs"})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM})


class SlabError(Exception):
    """The host slab cannot be had or closed. The message names the setting and the remedy."""


class SlabTooLarge(SlabError):
    """`cache.host_memory` is more than the machine, or the file system of `cache.host_directory`, has."""


class Origin(StrEnum):
    """How a slab came to be."""

    NEW = "new"
    """All bytes are zero."""
    INHERITED = "inherited"
    """It holds what an earlier process of this rank left; the block headers say what is whole."""


class _Locked(NamedTuple):
    path: Path
    descriptor: int


class HostSlab:
    """`size` bytes of host memory in the file `path`, writable through `buffer`, locked until closed.

    `HostSlab.open` makes one; `close` or `remove` ends it. A process that ends without either leaves the file,
    unlocked.
    """

    def __init__(self, path: Path, size: int, origin: Origin, descriptor: int):
        """Map and pre-fault the locked file behind `descriptor`, which stays the caller's to close."""
        self.path = path
        self.size = size
        self.origin = origin
        self._mapping = mmap.mmap(descriptor, 0)  # duplicates the descriptor, and with it keeps the lock
        self._open = True
        _prefault(self._mapping)
        self.buffer = memoryview(self._mapping)[:size]

    @classmethod
    def open(cls, host_directory: Path, cluster_id: str, replica: int, rank: int, size: int) -> "HostSlab":
        """Take the slab of a rank: an earlier one of the same size if nobody holds it, else a new one.

        Earlier files of the rank that are of no use and not locked are deleted first. Raises SlabTooLarge or another
        SlabError, and then leaves no new file behind. May take seconds per GiB, in which other threads run.
        """
        if size <= 0:
            raise ValueError(
                f"a host slab of {size} bytes is none; cache.host_memory 0 means to open no slab"
            )
        folder = slab_folder(host_directory, cluster_id)
        stem = f"{replica}-{rank}"
        try:
            unit = os.statvfs(host_directory).f_bsize  # of hugetlbfs: the huge page
            length = -(-size // unit) * unit
            origin, locked = Origin.INHERITED, _inherit(folder, stem, length)
            if locked is None:
                check_room(host_directory, size)
                origin, locked = Origin.NEW, _create(folder, stem, length)
            return cls._map(locked, size, origin)
        except OSError as error:
            raise SlabError(
                f"cache.host_directory {host_directory} cannot hold a host slab: {error}; it must be an existing, "
                "writable directory"
            ) from error
        finally:
            _remove_if_empty(folder)  # of use only after a failure

    @classmethod
    def _map(cls, locked: _Locked, size: int, origin: Origin) -> "HostSlab":
        try:
            return cls(locked.path, size, origin, locked.descriptor)
        except BaseException:
            locked.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(locked.descriptor)

    def close(self) -> None:
        """Unmap and unlock; the file stays for a successor. SlabError, and the lock stays, while views are alive.

        A view is whatever was made of `buffer`: numpy arrays, tensors, memoryviews. Harmless when repeated.
        """
        try:
            self.buffer.release()
            self._mapping.close()
        except BufferError:
            raise SlabError(
                f"{self.path} is still in use; drop every view of its buffer before closing"
            ) from None
        self._open = False

    def remove(self) -> None:
        """Delete the file, and the cluster's folder with its last file. Nothing happens once the slab is closed.

        Safe with views alive, since nobody can come upon a deleted file; its memory is free when the last view goes.
        """
        if not self._open:
            return
        self._open = False
        self.path.unlink(missing_ok=True)
        _remove_if_empty(self.path.parent)
        with suppress(SlabError):
            self.close()


def slab_folder(host_directory: Path, cluster_id: str) -> Path:
    """Where the slabs of a cluster lie on this machine."""
    return host_directory / f"stratakv-{cluster_id}"


def check_room(host_directory: Path, size: int) -> None:
    """SlabTooLarge unless the file system and the memory of this machine can give `size` bytes now."""
    stats = os.statvfs(host_directory)
    free = stats.f_bavail * stats.f_frsize
    if stats.f_blocks and free < size:  # no blocks at all: a mount without a limit of its own
        raise _too_large(size, f"{host_directory} has {format_size(free)} free")
    available = available_memory()
    if filesystem_type(host_directory) != "hugetlbfs" and available < size:
        raise _too_large(size, f"the machine has {format_size(available)} of memory available")


def available_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can still be allocated here without swapping, within the limit of the container if there is one."""
    available = 1024 * int(_field(proc / "meminfo", "MemAvailable:"))
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        reclaimable = int(_field(cgroup / "memory.stat", "inactive_file"))
    except OSError:
        return available  # no container, or version 1 of cgroups
    return available if limit == "max" else min(available, max(0, int(limit) - used + reclaimable))


def is_memory_backed(path: Path) -> bool:
    """Whether files below the existing `path` are memory (tmpfs, hugetlbfs), which alone can be pinned for good."""
    return filesystem_type(path) in _MEMORY_TYPES


def filesystem_type(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of the file system that holds `path`, as /proc/mounts calls it."""
    resolved = path.resolve()
    best, kind = -1, "unknown"
    for line in mounts.read_text().splitlines():
        _, encoded, found, *_ = line.split(" ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), encoded))
        if resolved.is_relative_to(point) and len(point.parts) >= best:  # a later mount covers an earlier one
            best, kind = len(point.parts), found
    return kind


def _field(path: Path, name: str) -> str:
    """The first word after `name` in a file of named lines."""
    lines = (line.split() for line in path.read_text().splitlines())
    return next(words[1] for words in lines if words and words[0] == name)


def _too_large(size: int, found: str) -> SlabTooLarge:
    return SlabTooLarge(
        f"cache.host_memory is {format_size(size)} per rank, but {found}; lower it, or set cache.host_directory to a "
        "tmpfs with room (a container often has 64MiB in /dev/shm: docker run --shm-size, or an emptyDir with medium "
        "Memory, gives it more)"
    )


def _inherit(folder: Path, stem: str, length: int) -> _Locked | None:
    """Lock the first file of `stem` that has `length` bytes and no owner; delete its other ownerless files."""
    found = None
    for path in _files_of(folder, stem):
        locked = _lock(path, os.O_RDWR)
        if locked is None:
            continue
        if found is None and os.fstat(locked.descriptor).st_size == length:
            found = locked
        else:
            path.unlink(missing_ok=True)
            os.close(locked.descriptor)
    return found


def _files_of(folder: Path, stem: str) -> list[Path]:
    if not folder.is_dir():
        return []
    pattern = re.compile(re.escape(stem) + r"(\.[0-9]+)?")
    return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))


def _create(folder: Path, stem: str, length: int) -> _Locked:
    """A new locked file of `length` bytes under the first name that is not in use."""
    for path in _names(folder, stem):
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            locked = _lock(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            if locked is not None:
                _allocate(locked, length)
                return locked
    raise SlabError(
        f"{folder} has {_LARGEST_SUFFIX + 1} slabs of {stem} in use; end the stopped processes that hold them"
    )


def _names(folder: Path, stem: str) -> Iterator[Path]:
    yield folder / stem
    for suffix in range(1, _LARGEST_SUFFIX + 1):
        yield folder / f"{stem}.{suffix}"


def _lock(path: Path, flags: int) -> _Locked | None:
    """Open and lock `path`; None if it is locked by another, or was deleted by another before we had the lock."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return _Locked(path, descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _allocate(locked: _Locked, length: int) -> None:
    """Give the file its memory now, so that no later write can fail. Deletes and closes it when that fails."""
    try:
        for offset in range(0, length, _CHUNK):
            os.posix_fallocate(locked.descriptor, offset, min(_CHUNK, length - offset))
    except BaseException as error:
        locked.path.unlink(missing_ok=True)
        os.close(locked.descriptor)
        if isinstance(error, OSError) and error.errno in _FULL:
            raise _too_large(length, f"{locked.path.parent} ran out of room") from error
        raise


def _prefault(mapping: mmap.mmap) -> None:
    """Enter every page of `mapping` into the page table, so that no copy waits for a fault. Keeps the contents."""
    for offset in range(0, len(mapping), _CHUNK):
        length = min(_CHUNK, len(mapping) - offset)
        try:
            mapping.madvise(_POPULATE_WRITE, offset, length)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            np.frombuffer(mapping, np.uint8, length, offset)[:: mmap.PAGESIZE] |= 0  # an older kernel: touch


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
