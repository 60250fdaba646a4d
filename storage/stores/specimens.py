"""Pages of no model, to try a store with: what the conformance checks and our own tests write and read."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from stratakv.kernels.shapes import LayerShape
from stratakv.storage.header import BlockHeader, chain_stamps
from stratakv.storage.identity import Identity, describe_shapes
from stratakv.storage.keys import chain
from stratakv.storage.layout import BlockLayout
from stratakv.storage.moves import PageStamp
from stratakv.storage.stores.answers import Get, Put, Shelf
from stratakv.storage.stores.store import Store
from stratakv.storage.stores.verify import seal
from stratakv.storage.tiers import Component

PAGE = 4
SMALL = BlockLayout([LayerShape(1, 8, 8)], PAGE, 4)
"""Blocks of 512 bytes."""
LARGE = BlockLayout([LayerShape(16, 64, 64)] * 2, PAGE, 4)
"""Blocks of 68 KiB, whose header is at the end of its room."""
CHECKPOINT = replace(SMALL, component=Component.RECURRENT)
ROOMY = 2**30


class Violation(AssertionError):
    """The store has broken its contract."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A store under test: `open` (capacity in bytes, identity) gives a front on the same place every time."""

    open: Callable[[int, Identity], Store]

    @contextmanager
    def opened(self, capacity: int = ROOMY, identity: Identity | None = None) -> Iterator[Store]:
        """A store that is closed in the end."""
        store = self.open(capacity, identity or an_identity())
        try:
            yield store
        finally:
            store.close()


def demand(found: object, wanted: object, what: str) -> None:
    """Violation unless they are equal."""
    if found != wanted:
        raise Violation(f"{what}: {found!r}, where the contract says {wanted!r}")


def an_identity(page_size: int = PAGE) -> Identity:
    """An identity of no model."""
    return Identity(
        model_config="a" * 64,
        weights="b" * 64,
        kv_dtype="float32",
        page_size=page_size,
        component_shapes=(describe_shapes(Component.FULL, SMALL.shapes),),
        alignment=64,
    )


def a_history(seed: int, pages: int, after: PageStamp | None = None) -> tuple[PageStamp, ...]:
    """Stamps of pages that follow each other, from the root or `after` a page. Other seeds give other tokens."""
    tokens = random.Random(seed).choices(range(50_000), k=pages * PAGE)
    parent = after.key if after else b""
    return chain_stamps(chain(tokens, PAGE, parent), parent, after.depth + 1 if after else 1, b"")


def a_block(
    page: PageStamp, layout: BlockLayout = SMALL, identity: Identity | None = None, seed: int = 0
) -> memoryview:
    """The block of `page` as a worker has it: a payload that depends on page and seed, a header without checksum."""
    block = bytearray(layout.block_bytes)
    payload = random.Random(page.key + bytes([seed])).randbytes(layout.payload_bytes)
    block[layout.payload_offset : layout.payload_offset + layout.payload_bytes] = payload
    digest = bytes.fromhex((identity or an_identity()).digest())
    header = BlockHeader.of(page, layout, digest, checksum=None)
    block[layout.header_offset : layout.payload_offset] = header.pack()
    return memoryview(block)


def put(store: Store, pages: Sequence[PageStamp], layout: BlockLayout = SMALL) -> list[Put]:
    """Write the blocks of `pages`; their outcomes."""
    blocks = [a_block(page, layout, store.identity) for page in pages]
    return [stored.outcome for stored in store.put(layout, pages, blocks)]


def get(store: Store, pages: Sequence[PageStamp], layout: BlockLayout = SMALL) -> list[Get]:
    """Read `pages` into dirty blocks; their outcomes.

    Violation if a hit is not what `put` wrote, or what is no hit could be taken for one.
    """
    blocks = [memoryview(bytearray(b"\xaa" * layout.block_bytes)) for _ in pages]
    outcomes = [got.outcome for got in store.get(layout, pages, blocks)]
    payload = slice(layout.payload_offset, layout.payload_offset + layout.payload_bytes)
    for page, outcome, block in zip(pages, outcomes, blocks, strict=True):
        header = bytes(block[layout.header_offset : layout.payload_offset])
        if outcome is Get.HIT:
            written = a_block(page, layout, store.identity)
            demand(
                block[payload] == written[payload], True, f"whether the payload of {page.key.hex()} is right"
            )
            demand(BlockHeader.unpack(header).key, page.key, "the key in a block that was read")
        else:
            demand(any(header), False, f"whether a header is left after {outcome}")
    return outcomes


def sealed(page: PageStamp, layout: BlockLayout = SMALL, identity: Identity | None = None) -> memoryview:
    """The block of `page` as it lies in a store, with its checksum."""
    block = a_block(page, layout, identity)
    seal(layout, bytes.fromhex((identity or an_identity()).digest()), page, block)
    return block


def plant(store: Store, page: PageStamp, block: memoryview, layout: BlockLayout = SMALL) -> None:
    """Put any bytes under the name of `page`, behind the back of the front."""
    store.backend.delete(Shelf.of(layout), [page.key])
    first = PageStamp(page.key, b"", 1, page.namespace)  # of a history, so that it needs no parent
    header = BlockHeader.of(first, layout, bytes.fromhex(store.identity.digest()), 0)
    stored = store.backend.write(Shelf.of(layout), [header], [block])
    demand([each.outcome for each in stored], [Put.WRITTEN], "what became of a raw write")
