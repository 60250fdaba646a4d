"""The contract of a store (base.py) as checks that every store must pass, whoever wrote it.

A check gets a `Subject`, a place that nothing else uses and that is empty (collection takes out whatever lies there),
and raises `Violation`. Our own tests run all of them over every store there is.
"""

import random
from collections import Counter
from collections.abc import Callable
from threading import Thread
from time import sleep

from stratakv.storage.layout import Group
from stratakv.storage.stores.answers import Failure, Get, Put, Removal
from stratakv.storage.stores.errors import StoreNotShared
from stratakv.storage.stores.specimens import (
    CHECKPOINT,
    LARGE,
    SMALL,
    Subject,
    a_block,
    a_history,
    an_identity,
    demand,
    get,
    plant,
    put,
    sealed,
)
from stratakv.storage.stores.store import Store
from stratakv.storage.tiers import Component, PageKey

Check = Callable[[Subject], None]

_TICK = 0.02
"""Seconds within which a store may take two uses for simultaneous."""


def round_trip(subject: Subject) -> None:
    """What was written is read back, from its own component and group alone, also by a store that is opened later."""
    pages = a_history(1, 5)
    keys = [page.key for page in pages]
    with subject.opened() as store:
        demand(store.exists(Component.FULL, Group(), keys), [False] * 5, "exists before")
        demand(get(store, pages), [Get.MISS] * 5, "get before")
        for layout in (SMALL, CHECKPOINT):
            demand(put(store, pages, layout), [Put.WRITTEN] * 5, "put")
        demand(store.exists(Component.FULL, Group(0, 2), keys), [False] * 5, "exists in another group")
        demand(store.exists(Component.SLIDING, Group(), keys), [False] * 5, "exists of another component")
    with subject.opened() as store:
        demand(store.exists(Component.FULL, Group(), keys), [True] * 5, "exists after")
        demand(get(store, pages), [Get.HIT] * 5, "get after")
        demand(get(store, pages, CHECKPOINT), [Get.HIT] * 5, "get of the other component")


def large_blocks(subject: Subject) -> None:
    """Blocks whose header is not at their start."""
    pages = a_history(2, 3)
    with subject.opened() as store:
        demand(put(store, pages, LARGE), [Put.WRITTEN] * 3, "put")
        demand(get(store, pages, LARGE), [Get.HIT] * 3, "get")
        found = {(each.key, each.header.parent if each.header else None) for each in store.scan()}
        demand(found, {(page.key, page.parent) for page in pages}, "scan")


def put_if_absent(subject: Subject) -> None:
    """A page is never written twice."""
    page = a_history(3, 1)[0]
    with subject.opened() as store:
        demand(put(store, [page]), [Put.WRITTEN], "first put")
        other = a_block(page, seed=1)
        demand(store.put(SMALL, [page], [other])[0].outcome, Put.PRESENT, "second put")
        demand(get(store, [page]), [Get.HIT], "get of what was there first")


def partial_misses(subject: Subject) -> None:
    """Every key has its own outcome, in the order asked."""
    pages = [a_history(seed, 1)[0] for seed in range(100, 130)]
    with subject.opened() as store:
        put(store, pages[::3])
        wanted = [Get.MISS if index % 3 else Get.HIT for index in range(len(pages))]
        demand(get(store, pages), wanted, "get")
        found = store.exists(Component.FULL, Group(), [page.key for page in pages])
        demand(found, [each is Get.HIT for each in wanted], "exists")


def batches(subject: Subject) -> None:
    """One call takes any number of pages."""
    with subject.opened() as store:
        for count in (0, 1, 128, 129, 257):
            pages = a_history(1000 + count, count)
            demand(put(store, pages), [Put.WRITTEN] * count, f"put of {count}")
            demand(get(store, pages), [Get.HIT] * count, f"get of {count}")


def other_identity(subject: Subject) -> None:
    """Pages of another identity are not seen, and not believed when they turn up."""
    pages, other = a_history(4, 2), an_identity(page_size=64)
    with subject.opened() as store:
        put(store, pages)
        plant(store, pages[0], sealed(pages[0], identity=other))
        demand(get(store, pages), [Get.CORRUPT, Get.HIT], "get of a foreign block")


def wrong_bytes(subject: Subject) -> None:
    """A changed bit, a swapped, cut or lengthened block: corrupt, counted, gone, and written anew."""
    chance = random.Random(5)
    page, stranger = (a_history(seed, 1)[0] for seed in (5, 6))
    good = bytes(sealed(page))
    offsets = [0, 8, 80, 255, SMALL.payload_offset, SMALL.block_bytes - 1]
    flipped = [
        _flip(good, offset, chance.randrange(8)) for offset in offsets + chance.choices(range(512), k=20)
    ]
    strange = [
        bytes(sealed(stranger)),
        bytes(sealed(page, CHECKPOINT)),
        bytes(a_block(page)),
        bytes(len(good)),
    ]
    cut = [good[:-1], good[:256], good[:255], b"", good + bytes(64)]
    with subject.opened() as store:
        for count, bad in enumerate(flipped + strange + cut, start=1):
            plant(store, page, memoryview(bytearray(bad)))
            demand(get(store, [page]), [Get.CORRUPT], f"get of wrong bytes {bad[:300]!r}")
            demand(store.stats().corrupt, count, "the count of corrupt blocks")
            demand(get(store, [page]), [Get.MISS], "get after that")
            demand(put(store, [page]), [Put.WRITTEN], "put after that")
            demand(get(store, [page]), [Get.HIT], "get after it was written anew")


def bad_blocks(subject: Subject) -> None:
    """What is not the sealed block of its key is not written."""
    page, other = (a_history(seed, 1)[0] for seed in (7, 8))
    unsealed, changed = a_block(page), sealed(page)
    unsealed[: SMALL.payload_offset] = bytes(SMALL.payload_offset)
    changed[SMALL.payload_offset] ^= 1
    foreign = a_block(page, identity=an_identity(page_size=64))
    with subject.opened() as store:
        for bad in (unsealed, changed, foreign, a_block(other), a_block(page, CHECKPOINT)):
            stored = store.put(SMALL, [page], [bad])[0]
            demand((stored.outcome, stored.failure), (Put.FAILED, Failure.BAD_BLOCK), "put of a bad block")
        demand(get(store, [page]), [Get.MISS], "get after that")


def no_gaps(subject: Subject) -> None:
    """A page of full attention is not written where its parent is missing."""
    pages = a_history(9, 4)
    with subject.opened() as store:
        blocks = [a_block(page) for page in pages[1:]]
        stored = store.put(SMALL, pages[1:], blocks)
        demand([each.failure for each in stored], [Failure.NO_PARENT] * 3, "put below a gap")
        demand(put(store, pages[1:], CHECKPOINT), [Put.WRITTEN] * 3, "put of checkpoints below a gap")
        demand(put(store, pages), [Put.WRITTEN] * 4, "put from the root")


def bounded(subject: Subject) -> None:
    """The capacity is never passed, what is written is there, and what was used last stays."""
    capacity = 10 * SMALL.block_bytes
    kept = a_history(500, 1)
    with subject.opened(capacity) as store:
        put(store, kept)
        for seed in range(501, 540):
            page = a_history(seed, 1)
            sleep(_TICK)
            demand(put(store, page), [Put.WRITTEN], "put into a full store")
            demand(get(store, [*kept, *page]), [Get.HIT] * 2, "get of the pages that were used last")
            size = sum(each.size for each in store.scan())
            demand(size <= capacity, True, f"whether {size} bytes are within {capacity}")


def parents_stay(subject: Subject) -> None:
    """Whatever is collected, no page is left without its parent."""
    chance = random.Random(10)
    with subject.opened(24 * SMALL.block_bytes) as store:
        known = list(a_history(600, 1))
        for seed in range(601, 681):
            pages = a_history(seed, chance.randrange(1, 5), after=chance.choice([None, *known]))
            put(store, pages)
            known = [*known, *pages][-40:]
            get(store, chance.choices(known, k=3))
            headers = {each.key: each.header for each in store.scan()}
            for key, header in headers.items():
                whole = header is not None and (header.depth == 1 or header.parent in headers)
                demand(whole, True, f"whether {key.hex()} and its parent are stored")


def components_go_together(subject: Subject) -> None:
    """A page is collected with all its components or stays with all."""
    pages = [a_history(seed, 1)[0] for seed in range(800, 803)]
    with subject.opened(8 * SMALL.block_bytes) as store:
        put(store, pages)
        put(store, pages, CHECKPOINT)
        for seed in range(810, 818):
            put(store, a_history(seed, 1))
            found: dict[PageKey, int] = Counter(each.key for each in store.scan())
            left = [found[page.key] for page in pages]
            demand(set(left) <= {0, 2}, True, f"whether pages are whole that have {left} of 2 components")
        demand(left, [0, 0, 0], "what is left of pages that were not used")


def deletion(subject: Subject) -> None:
    """What is deleted is gone from its shelf, and from no other."""
    pages = a_history(11, 3)
    keys = [page.key for page in pages]
    with subject.opened() as store:
        put(store, pages)
        put(store, pages, CHECKPOINT)
        removed = store.delete(Component.FULL, Group(), [*keys[1:], b"?" * 32])
        demand(removed, [Removal.DELETED, Removal.DELETED, Removal.MISS], "delete")
        demand(get(store, pages), [Get.HIT, Get.MISS, Get.MISS], "get after")
        demand(get(store, pages, CHECKPOINT), [Get.HIT] * 3, "get of the other component")


def threads(subject: Subject) -> None:
    """Several threads at once, partly with the same pages."""
    histories = [a_history(700 + index // 2, 20) for index in range(4)]
    broken: list[BaseException] = []

    def use(store: Store, index: int) -> None:
        try:
            pages = histories[index]
            for start in range(0, 20, 5):
                demand(Put.FAILED in put(store, pages[start : start + 5]), False, "whether a put has failed")
                demand(get(store, pages[: start + 5]), [Get.HIT] * (start + 5), "get")
        except BaseException as error:
            broken.append(error)

    with subject.opened() as store:
        users = [Thread(target=use, args=(store, index)) for index in range(4)]
        for user in users:
            user.start()
        for user in users:
            user.join()
        if broken:
            raise broken[0]
        demand(store.stats().written, 40, "pages written")


def marks(subject: Subject) -> None:
    """A mark that one leaves is seen by another, and no other mark is."""
    with subject.opened() as head, subject.opened() as rank:
        head.write_nonce("0123abcd")
        rank.expect_nonce("0123abcd", deadline=1)
        try:
            rank.expect_nonce("0123abce", deadline=0)
        except StoreNotShared:
            return
        demand("seen", "not seen", "a mark that nobody left")


def closed(subject: Subject) -> None:
    """A closed store fails, without raising, and may be closed again."""
    page = a_history(12, 1)[0]
    with subject.opened() as store:
        store.close()
        stored = store.put(SMALL, [page], [a_block(page)])[0]
        demand((stored.outcome, stored.failure), (Put.FAILED, Failure.CLOSED), "put")
        demand(get(store, [page]), [Get.FAILED], "get")
        demand(store.exists(Component.FULL, Group(), [page.key]), [False], "exists")


CHECKS: tuple[Check, ...] = (
    round_trip,
    large_blocks,
    put_if_absent,
    partial_misses,
    batches,
    other_identity,
    wrong_bytes,
    bad_blocks,
    no_gaps,
    bounded,
    parents_stay,
    components_go_together,
    deletion,
    threads,
    marks,
    closed,
)


def _flip(data: bytes, offset: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[offset] ^= 1 << bit
    return bytes(changed)
