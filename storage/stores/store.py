"""L3 as a worker uses it: a backend, behind a front that lets nothing unverified through.

I/O threads call it, to read pages while their request waits and to write pages as soon as their host copy is committed.
It cuts calls into batches, seals what goes out, verifies what comes in, and turns whatever goes wrong into an outcome:
a store that is broken costs a request no more than computing again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from time import monotonic, sleep
from typing import Generic, ParamSpec, TypeVar

from stratakv.storage.header import BlockHeader
from stratakv.storage.identity import Identity
from stratakv.storage.layout import BlockLayout, Group
from stratakv.storage.moves import PageStamp
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
    StoreStats,
)
from stratakv.storage.stores.base import Backend
from stratakv.storage.stores.errors import StoreNotShared
from stratakv.storage.stores.verify import BadBlock, seal, verify, void
from stratakv.storage.tiers import Component, PageKey

T = TypeVar("T")
P = ParamSpec("P")

_NONCE_POLL = 0.05


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    """What a backend said, and what to say of the keys that it did not mention."""

    entries: Sequence[T]
    failure: Failure
    detail: str

    def filled(self, count: int, missing: T) -> list[T]:
        """`count` entries. Fails closed: a short answer is filled up, and one that is too long says nothing."""
        entries = list(self.entries) if len(self.entries) <= count else []
        return entries + [missing] * (count - len(entries))


class Store:
    """`backend` behind verification, for one identity. Blocking; safe for several threads.

    Blocks are whole blocks of `layout` in the caller's memory, header room and payload, as contiguous writable
    memoryviews of bytes. No call raises for what a store does; ValueError is for what a caller got wrong.
    """

    def __init__(self, backend: Backend, identity: Identity, batch_pages: int = 128):
        self.backend = backend
        self.identity = identity
        self._digest = bytes.fromhex(identity.digest())
        self._batch_pages = batch_pages
        self._gets: Counter[Get] = Counter()
        self._puts: Counter[Put] = Counter()
        self._counting = Lock()
        self._closed = False

    def exists(self, component: Component, group: Group, keys: Sequence[PageKey]) -> list[bool]:
        """A bitmap over `keys`. A key that the store fails to answer for is not there."""
        found: list[bool] = []
        for batch in self._batches(len(keys)):
            found += self._exists(Shelf(component, group), keys[batch])
        return found

    def get(self, layout: BlockLayout, pages: Sequence[PageStamp], blocks: Sequence[memoryview]) -> list[Got]:
        """Read `pages` into `blocks`. Only the block of a HIT may be used; the header of any other is cleared."""
        _check_blocks(layout, len(pages), blocks)
        got: list[Got] = []
        for batch in self._batches(len(pages)):
            got += self._get_batch(layout, pages[batch], blocks[batch])
        with self._counting:
            self._gets.update(answer.outcome for answer in got)
        return got

    def put(
        self, layout: BlockLayout, pages: Sequence[PageStamp], blocks: Sequence[memoryview]
    ) -> list[Stored]:
        """Write the sealed `blocks` of `pages`, parents before children, unless they are stored already.

        A header without a checksum is given one, in the caller's block; nothing else is changed.
        """
        _check_blocks(layout, len(pages), blocks)
        stored: list[Stored] = []
        for batch in self._batches(len(pages)):
            stored += self._put_batch(layout, pages[batch], blocks[batch])
        with self._counting:
            self._puts.update(answer.outcome for answer in stored)
        return stored

    def delete(self, component: Component, group: Group, keys: Sequence[PageKey]) -> list[Removal]:
        """Take `keys` out of this component and group, and nothing else: their descendants are orphans then."""
        removed: list[Removal] = []
        for batch in self._batches(len(keys)):
            answer = self._ask(self.backend.delete, Shelf(component, group), keys[batch])
            removed += answer.filled(len(keys[batch]), Removal.FAILED)
        return removed

    def scan(self) -> Iterator[StoredBlock]:
        """Every stored block of this identity, payloads unread. For tools: may be slow, and may raise."""
        return self.backend.scan()

    def stats(self) -> StoreStats:
        """Counts since this process opened the store, and what the store holds."""
        with self._counting:
            gets, puts = self._gets.copy(), self._puts.copy()
        return StoreStats(
            hits=gets[Get.HIT],
            misses=gets[Get.MISS],
            corrupt=gets[Get.CORRUPT],
            get_failed=gets[Get.FAILED],
            written=puts[Put.WRITTEN],
            present=puts[Put.PRESENT],
            put_failed=puts[Put.FAILED],
            usage=self.backend.usage(),
        )

    def remarks(self) -> list[str]:
        """What to tell the operator at start: pages of other identities, a capacity that the disk does not have."""
        foreign = [describe_foreign(self.identity, pages) for pages in self.backend.foreign()]
        return [*self.backend.remarks(), *foreign]

    def write_nonce(self, nonce: str) -> None:
        """Leave a mark for `expect_nonce` of the other ranks. `nonce` is hex digits. StoreError if it cannot."""
        self.backend.write_nonce(nonce)

    def expect_nonce(self, nonce: str, deadline: float = 5.0) -> None:
        """Wait until the mark that the head left is seen here; StoreNotShared after `deadline` seconds."""
        end = monotonic() + deadline
        while not self.backend.has_nonce(nonce):
            if monotonic() >= end:
                raise StoreNotShared(
                    f"store.url: what the head wrote to the store is not seen by this rank within {deadline:g} s, so "
                    "they are different stores; give every rank one shared directory or one server"
                )
            sleep(_NONCE_POLL)

    def close(self) -> None:
        """Close the backend. Later calls fail with CLOSED. Harmless when repeated."""
        self._closed = True
        self.backend.close()

    def _batches(self, count: int) -> Iterator[slice]:
        return (slice(at, min(at + self._batch_pages, count)) for at in range(0, count, self._batch_pages))

    def _exists(self, shelf: Shelf, keys: Sequence[PageKey]) -> list[bool]:
        return self._ask(self.backend.exists, shelf, keys).filled(len(keys), False)

    def _get_batch(
        self, layout: BlockLayout, pages: Sequence[PageStamp], blocks: Sequence[memoryview]
    ) -> list[Got]:
        for block in blocks:  # or a store that does less than it says would pass off what was here before
            void(layout, block)
        shelf, keys = Shelf.of(layout), [page.key for page in pages]
        answer = self._ask(self.backend.read, shelf, keys, blocks)
        got = answer.filled(len(keys), Got(Get.FAILED, answer.failure, answer.detail))
        for index, (page, block) in enumerate(zip(pages, blocks, strict=True)):
            if got[index].outcome is Get.HIT:
                got[index] = self._verified(layout, page, block)
            if got[index].outcome is not Get.HIT:
                void(layout, block)
            if got[index].outcome is Get.CORRUPT:
                with suppress(Exception):  # it stays where it is, and is found corrupt again
                    self.backend.quarantine(shelf, page.key)
        return got

    def _verified(self, layout: BlockLayout, page: PageStamp, block: memoryview) -> Got:
        try:
            verify(layout, self._digest, page, block)
        except BadBlock as error:
            return Got(Get.CORRUPT, detail=str(error))
        return Got(Get.HIT)

    def _put_batch(
        self, layout: BlockLayout, pages: Sequence[PageStamp], blocks: Sequence[memoryview]
    ) -> list[Stored]:
        shelf = Shelf.of(layout)
        stored = [Stored(Put.PRESENT)] * len(pages)
        headers: dict[int, BlockHeader] = {}
        for index, present in enumerate(self._exists(shelf, [page.key for page in pages])):
            if present:
                continue
            try:
                headers[index] = seal(layout, self._digest, pages[index], blocks[index])
            except BadBlock as error:
                stored[index] = Stored(Put.FAILED, Failure.BAD_BLOCK, str(error))
        if headers:
            answer = self._ask(
                self.backend.write, shelf, list(headers.values()), [blocks[index] for index in headers]
            )
            entries = answer.filled(len(headers), Stored(Put.FAILED, answer.failure, answer.detail))
            for index, entry in zip(headers, entries, strict=True):
                stored[index] = entry
        return stored

    def _ask(self, call: Callable[P, Sequence[T]], *args: P.args, **kwargs: P.kwargs) -> _Answer[T]:
        if self._closed:
            return _Answer([], Failure.CLOSED, "the store is closed")
        try:
            entries = call(*args, **kwargs)
        except Exception as error:  # whatever a backend raises, the request must survive it
            return _Answer([], Failure.ERROR, f"{type(error).__name__}: {error}")
        return _Answer(entries, Failure.SHORT_ANSWER, f"the store gave {len(entries)} answers")


def describe_foreign(mine: Identity, foreign: ForeignPages) -> str:
    """One sentence on pages that cannot be used here, and why."""
    held = f"this store holds {foreign.pages:,} pages under an identity that"
    try:
        theirs = Identity.from_json(foreign.identity or b"")
    except ValueError:
        return f"{held} says nothing readable of itself ({foreign.digest[:12]})"
    return f"{held} differs from mine in {', '.join(mine.difference(theirs))}"


def _check_blocks(layout: BlockLayout, count: int, blocks: Sequence[memoryview]) -> None:
    if len(blocks) != count:
        raise ValueError(f"{count} pages need {count} blocks, here are {len(blocks)}")
    for block in blocks:
        if block.readonly or not block.c_contiguous or block.format != "B" or block.ndim != 1:
            raise ValueError("a block must be a writable, contiguous, one-dimensional memoryview of bytes")
        if block.nbytes != layout.block_bytes:
            raise ValueError(
                f"a block of {Shelf.of(layout)} has {layout.block_bytes} bytes, here are {block.nbytes}"
            )
