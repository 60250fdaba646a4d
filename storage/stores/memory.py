"""A store in the memory of one process: for tests, and for replaying workloads without a model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from time import time

from stratakv.storage.header import BlockHeader, peek_header
from stratakv.storage.identity import Identity
from stratakv.storage.layout import BlockLayout
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
from stratakv.storage.stores.capacity import check_capacity, watermarks
from stratakv.storage.stores.collect import Resident, count_orphans, victims
from stratakv.storage.stores.settings import StoreSettings
from stratakv.storage.tiers import Component, PageKey


@dataclass(slots=True)
class _Page:
    """A page on all its shelves. `tick` numbers its last use, `used` is its time."""

    parent: bytes
    depth: int
    tick: int
    used: float
    blocks: dict[Shelf, bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.blocks.values()))


class MemoryBackend(Backend):
    """Blocks in a dict. Shared by all who hold the object, and gone with it."""

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._pages: dict[PageKey, _Page] = {}
        self._size = 0
        self._tick = 0
        self._collected = 0
        self._nonces: set[str] = set()
        self._lock = Lock()

    def exists(self, shelf: Shelf, keys: Sequence[PageKey]) -> list[bool]:
        """Whether each key is stored, and use it."""
        with self._lock:
            return [self._use(shelf, key) is not None for key in keys]

    def read(self, shelf: Shelf, keys: Sequence[PageKey], blocks: Sequence[memoryview]) -> list[Got]:
        """Copy what is stored into each block."""
        return [self._read(shelf, key, block) for key, block in zip(keys, blocks, strict=True)]

    def write(
        self, shelf: Shelf, headers: Sequence[BlockHeader], blocks: Sequence[memoryview]
    ) -> list[Stored]:
        """Copy each block, collecting others for room."""
        with self._lock:
            return [self._write(shelf, header, bytes(b)) for header, b in zip(headers, blocks, strict=True)]

    def delete(self, shelf: Shelf, keys: Sequence[PageKey]) -> list[Removal]:
        """Forget each key on this shelf."""
        with self._lock:
            return [self._delete(shelf, key) for key in keys]

    def quarantine(self, shelf: Shelf, key: PageKey) -> None:
        """Forget `key`: memory is no place to keep what is broken."""
        self.delete(shelf, [key])

    def scan(self) -> Iterator[StoredBlock]:
        """Every block as it is now."""
        with self._lock:
            found = [
                (shelf, key, page.used, block)
                for key, page in self._pages.items()
                for shelf, block in page.blocks.items()
            ]
        for shelf, key, used, block in found:
            yield StoredBlock(shelf, key, len(block), used, peek_header(block, len(block)))

    def usage(self) -> Usage:
        """Exact."""
        with self._lock:
            orphans = count_orphans(self._residents())
            return Usage(len(self._pages), self._size, self._capacity, orphans, self._collected)

    def foreign(self) -> list[ForeignPages]:
        """None: the memory of a process has one identity."""
        return []

    def remarks(self) -> list[str]:
        """That it will not last."""
        return [
            "the store is this process's own memory: its pages end with it, and no other worker finds them"
        ]

    def write_nonce(self, nonce: str) -> None:
        """Remember `nonce`."""
        self._nonces.add(nonce)

    def has_nonce(self, nonce: str) -> bool:
        """Whether this very object was given `nonce`."""
        return nonce in self._nonces

    def close(self) -> None:
        """Nothing to give up."""

    def _use(self, shelf: Shelf, key: PageKey) -> bytes | None:
        page = self._pages.get(key)
        if page is None or shelf not in page.blocks:
            return None
        self._touch(page)
        return page.blocks[shelf]

    def _touch(self, page: _Page) -> None:
        self._tick += 1
        page.tick, page.used = self._tick, time()

    def _read(self, shelf: Shelf, key: PageKey, block: memoryview) -> Got:
        with self._lock:
            found = self._use(shelf, key)
        if found is None:
            return Got(Get.MISS)
        if len(found) != len(block):
            return Got(Get.CORRUPT, detail=f"{len(found)} bytes are stored, where a block has {len(block)}")
        block[:] = found
        return Got(Get.HIT)

    def _write(self, shelf: Shelf, header: BlockHeader, block: bytes) -> Stored:
        page = self._pages.get(header.key)
        if page is not None and shelf in page.blocks:
            return Stored(Put.PRESENT)
        if not self._touch_parent(shelf, header):
            return Stored(Put.FAILED, Failure.NO_PARENT, "the page before is not stored")
        if self._size + len(block) > self._capacity:
            self._collect(self._size + len(block) - watermarks(self._capacity, len(block)).low)
        if self._size + len(block) > self._capacity:
            return Stored(Put.FAILED, Failure.NO_ROOM, f"all {self._capacity} bytes are taken")
        if not self._touch_parent(shelf, header):
            return Stored(Put.FAILED, Failure.NO_PARENT, "the page before had to make room")
        page = self._pages.setdefault(header.key, _Page(header.parent, header.depth, 0, 0.0, {}))
        page.blocks[shelf] = block
        self._size += len(block)
        self._touch(page)
        return Stored(Put.WRITTEN)

    def _touch_parent(self, shelf: Shelf, header: BlockHeader) -> bool:
        if shelf.component is not Component.FULL or header.depth <= 1:
            return True
        return self._use(shelf, header.parent) is not None

    def _collect(self, excess: int) -> None:
        for key in victims(self._residents(), excess):
            self._size -= self._pages.pop(key).size
            self._collected += 1

    def _delete(self, shelf: Shelf, key: PageKey) -> Removal:
        page = self._pages.get(key)
        if page is None or shelf not in page.blocks:
            return Removal.MISS
        self._size -= len(page.blocks.pop(shelf))
        if not page.blocks:
            del self._pages[key]
        return Removal.DELETED

    def _residents(self) -> dict[bytes, Resident]:
        return {
            key: Resident(page.parent, page.depth, page.tick, page.size) for key, page in self._pages.items()
        }


@STORES.register("memory")
def open_memory(settings: StoreSettings, identity: Identity, layouts: Sequence[BlockLayout]) -> MemoryBackend:
    """An empty store of this process alone. StoreTooSmall if it could not hold a page."""
    check_capacity(settings.capacity, layouts)
    return MemoryBackend(settings.capacity)
