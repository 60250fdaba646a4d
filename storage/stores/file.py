"""A directory as a store: local, or mounted by every machine of the cluster. One file per page, component and group.

A block is written from host memory under a temporary name and then linked to its own, which fails if that is taken: it
is there as a whole or not at all, whoever dies. It is not flushed to the device: what a power failure takes shows as
corrupt, and is computed again. The last use of a block is its modification time, which all processes share.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from stratakv.storage.header import BlockHeader, peek_header
from stratakv.storage.identity import Identity
from stratakv.storage.layout import BlockLayout
from stratakv.storage.settings import format_size
from stratakv.storage.stores import folder
from stratakv.storage.stores.answers import (
    Failure,
    ForeignPages,
    Get,
    Got,
    Put,
    Removal,
    Shelf,
    Stored,
    StoredBlock,
    Usage,
)
from stratakv.storage.stores.base import STORES, Backend
from stratakv.storage.stores.capacity import check_capacity, page_bytes
from stratakv.storage.stores.census import Lineage
from stratakv.storage.stores.errors import StoreUnusable
from stratakv.storage.stores.folder import Folder
from stratakv.storage.stores.gardener import Gardener, Plant
from stratakv.storage.stores.settings import StoreSettings
from stratakv.storage.tiers import Component, PageKey

_HEAD = 4096
_NO_PARENT = Stored(Put.FAILED, Failure.NO_PARENT, "the page before is not stored")


class FileBackend(Backend):
    """Blocks as files below `place`, kept within what `gardener` grants."""

    def __init__(self, place: Folder, gardener: Gardener, remarks: Sequence[str] = ()):
        self.gardener = gardener
        self._folder = place
        self._remarks = list(remarks)

    def exists(self, shelf: Shelf, keys: Sequence[PageKey]) -> list[bool]:
        """Whether each key has a file, which is used thereby."""
        return [_touch(self._folder.block(shelf, key)) for key in keys]

    def read(self, shelf: Shelf, keys: Sequence[PageKey], blocks: Sequence[memoryview]) -> list[Got]:
        """Read each file straight into its block."""
        return [_read(self._folder.block(shelf, key), block) for key, block in zip(keys, blocks, strict=True)]

    def write(
        self, shelf: Shelf, headers: Sequence[BlockHeader], blocks: Sequence[memoryview]
    ) -> list[Stored]:
        """Write each file straight from its block. Waits for the gardener when there is no room."""
        return [self._write(shelf, header, block) for header, block in zip(headers, blocks, strict=True)]

    def delete(self, shelf: Shelf, keys: Sequence[PageKey]) -> list[Removal]:
        """Unlink the files. Their room is found again by the next census."""
        return [_delete(self._folder.block(shelf, key)) for key in keys]

    def quarantine(self, shelf: Shelf, key: PageKey) -> None:
        """Move the file into the folder `quarantine`, where it stays until its room is needed."""
        with suppress(FileNotFoundError):
            os.rename(self._folder.block(shelf, key), self._folder.quarantined(shelf, key))

    def scan(self) -> Iterator[StoredBlock]:
        """Every file of this identity; opens each for its header."""
        for path, shelf in folder.shelves(self._folder.home):
            for names in folder.fan_out(path):
                for entry in folder.blocks(names):
                    with suppress(FileNotFoundError):
                        yield _describe(shelf, entry)

    def usage(self) -> Usage:
        """The last census, and what this process has written since."""
        return self.gardener.usage()

    def foreign(self) -> list[ForeignPages]:
        """Other identities in the directory."""
        return self._folder.foreign()

    def remarks(self) -> list[str]:
        """What was found at the opening."""
        return self._remarks

    def write_nonce(self, nonce: str) -> None:
        """An empty file. StoreUnusable."""
        try:
            os.close(os.open(self._folder.nonce(nonce), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        except OSError as error:
            raise StoreUnusable(
                f"store.url: {self._folder.root} cannot be written any more: {error}"
            ) from error

    def has_nonce(self, nonce: str) -> bool:
        """Whether the file is here. Lists its folder, since a network file system remembers names that were not."""
        wanted = self._folder.nonce(nonce)
        return any(entry.path == wanted for entry in folder.entries(os.path.dirname(wanted)))

    def close(self) -> None:
        """End the gardener."""
        self.gardener.close()

    def _write(self, shelf: Shelf, header: BlockHeader, block: memoryview) -> Stored:
        if not self._touch_parent(shelf, header):
            return _NO_PARENT
        refusal = self.gardener.reserve(len(block))
        if refusal is not None:
            return refusal
        stored = Stored(Put.FAILED, Failure.ERROR, "interrupted")
        try:
            stored = self._publish(shelf, header, block)
        except OSError as error:
            failure = Failure.NO_ROOM if error.errno in folder.FULL_DISK else Failure.ERROR
            stored = Stored(Put.FAILED, failure, f"{type(error).__name__}: {error}")
        finally:
            if stored.outcome is not Put.WRITTEN:
                self.gardener.refund(len(block), stored)
        return stored

    def _publish(self, shelf: Shelf, header: BlockHeader, block: memoryview) -> Stored:
        temporary = self._folder.temporary()
        try:
            _fill(temporary, block)
            with self.gardener.planting:
                if not self._touch_parent(shelf, header):
                    return _NO_PARENT
                path = self._folder.block(shelf, header.key)
                if not folder.place(temporary, path):
                    return Stored(Put.PRESENT)
                lineage = Lineage(header.parent, header.depth)
                self.gardener.planted(Plant(path, self._folder.digest + header.key, lineage, len(block)))
            return Stored(Put.WRITTEN)
        finally:
            with suppress(OSError):
                os.unlink(temporary)

    def _touch_parent(self, shelf: Shelf, header: BlockHeader) -> bool:
        """Whether the parent is stored, if it must be: used with its child, it stays as long."""
        if shelf.component is not Component.FULL or header.depth <= 1:
            return True
        return _touch(self._folder.block(shelf, header.parent))


@STORES.register("file")
def open_file(settings: StoreSettings, identity: Identity, layouts: Sequence[BlockLayout]) -> FileBackend:
    """The store in the directory of a `file:` URL, made if it is missing. StoreError."""
    place = Folder(folder.root_of(settings.url or ""), identity)
    check_capacity(settings.capacity, layouts)
    place.prepare(page_bytes(layouts))
    free = folder.free_bytes(place.root)
    remarks = []
    if free < settings.capacity:
        remarks.append(
            f"store.capacity is {format_size(settings.capacity)}, but {place.root} has {format_size(free)} free "
            "besides what is stored; the store keeps within what there is"
        )
    return FileBackend(place, Gardener(place, settings.capacity, page_bytes(layouts)), remarks)


def _touch(path: str) -> bool:
    """Whether `path` is there; if so it has been used now."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return os.path.exists(path)  # it may be read, though not written
    return True


def _read(path: str, block: memoryview) -> Got:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return Got(Get.MISS)
    except OSError as error:
        return _failed(error)
    try:
        size = os.fstat(descriptor).st_size
        if size != len(block):
            return Got(Get.CORRUPT, detail=f"the file has {size} bytes, where a block has {len(block)}")
        done = 0
        while done < size and (count := os.preadv(descriptor, [block[done:]], done)):
            done += count
        if done < size:
            return Got(Get.FAILED, Failure.ERROR, f"the file ended after {done} of {size} bytes")
        with suppress(OSError):
            os.utime(descriptor)
        return Got(Get.HIT)
    except OSError as error:
        return _failed(error)
    finally:
        os.close(descriptor)


def _failed(error: OSError) -> Got:
    return Got(Get.FAILED, Failure.ERROR, f"{type(error).__name__}: {error}")


def _fill(path: str, block: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        done = 0
        while done < len(block):
            done += os.pwritev(descriptor, [block[done:]], done)
    finally:
        os.close(descriptor)


def _delete(path: str) -> Removal:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return Removal.MISS
    except OSError:
        return Removal.FAILED
    return Removal.DELETED


def _describe(shelf: Shelf, entry: "os.DirEntry[str]") -> StoredBlock:
    stat = entry.stat(follow_symlinks=False)
    with open(entry.path, "rb", buffering=0) as file:
        header = peek_header(file.read(_HEAD), stat.st_size)
    return StoredBlock(shelf, bytes.fromhex(entry.name), stat.st_size, stat.st_mtime, header)
