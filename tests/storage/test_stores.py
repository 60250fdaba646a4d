"""The front of a store, its opening, and which pages are collected."""

import sys
import zlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratakv.storage.header import BlockHeader, chain_stamps, peek_header
from stratakv.storage.layout import Group, header_offset_of
from stratakv.storage.moves import PageStamp
from stratakv.storage.stores.answers import Failure, Get, Got, Put, Removal, Stored
from stratakv.storage.stores.base import STORES
from stratakv.storage.stores.capacity import watermarks
from stratakv.storage.stores.collect import Resident, collection_order, count_orphans, victims
from stratakv.storage.stores.errors import StoreError, StoreTooSmall, StoreUrlError
from stratakv.storage.stores.faulty import Fault, FaultRates, FaultyBackend
from stratakv.storage.stores.memory import MemoryBackend, open_memory
from stratakv.storage.stores.opening import find_opener, open_store
from stratakv.storage.stores.settings import StoreSettings, default_url
from stratakv.storage.stores.specimens import (
    LARGE,
    ROOMY,
    SMALL,
    a_block,
    a_history,
    an_identity,
    get,
    plant,
    put,
    sealed,
)
from stratakv.storage.stores.store import Store
from stratakv.storage.tiers import Component

PAGES = a_history(1, 6)


def memory_store(**options):
    return Store(MemoryBackend(ROOMY), an_identity(), **options)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([SMALL, LARGE]), st.data())
def test_no_flipped_bit_passes(layout, data):
    store = memory_store()
    page = PAGES[0]
    block = sealed(page, layout)
    bit = data.draw(st.integers(0, 8 * layout.block_bytes - 1))
    block[bit // 8] ^= 1 << bit % 8
    plant(store, page, block, layout)
    meaningful = 0 <= bit // 8 - layout.header_offset < 256 + layout.payload_bytes
    assert get(store, [page], layout) == [Get.CORRUPT if meaningful else Get.HIT]  # padding holds nothing


def test_a_wrong_ancestry_is_corrupt():
    page = PAGES[3]
    for wrong in (
        PageStamp(page.key, b"p" * 32, page.depth, page.namespace),
        PageStamp(page.key, page.parent, page.depth + 1, page.namespace),
        PageStamp(page.key, page.parent, page.depth, b"n" * 32),
    ):
        store = memory_store()
        plant(store, page, sealed(page))
        assert get(store, [wrong]) == [Get.CORRUPT]


def test_a_block_under_a_wrong_ancestry_is_not_written():
    page = PAGES[0]
    store = memory_store()
    for wrong in (PageStamp(page.key, b"", 2, b""), PageStamp(page.key, b"", 1, b"n" * 32)):
        stored = store.put(SMALL, [wrong], [a_block(page)])[0]
        assert stored.failure is Failure.BAD_BLOCK and "expected" in stored.detail
    assert get(store, [page]) == [Get.MISS]


def test_put_fills_in_the_checksum_and_changes_nothing_else():
    store = memory_store()
    block, before = a_block(PAGES[0]), bytes(a_block(PAGES[0]))
    assert store.put(SMALL, PAGES[:1], [block]) == [Stored(Put.WRITTEN)]
    header = BlockHeader.unpack(bytes(block[:256]))
    assert header.checksum == zlib.crc32(block[256:])
    assert block[256:] == before[256:]
    assert bytes(block) == bytes(sealed(PAGES[0]))


class Lying(MemoryBackend):
    """Answers as it is told to."""

    answer = staticmethod(lambda count: [])

    def read(self, shelf, keys, blocks):
        return self.answer(len(keys))

    def write(self, shelf, headers, blocks):
        return self.answer(len(headers))

    def exists(self, shelf, keys):
        return self.answer(len(keys))

    def delete(self, shelf, keys):
        return self.answer(len(keys))


def lying(answer):
    backend = Lying(ROOMY)
    backend.answer = answer
    return Store(backend, an_identity())


def broken(count):
    raise ConnectionError("gone")


def test_a_short_answer_fails_closed():
    store = lying(lambda count: [True] * (count - 1))
    keys = [page.key for page in PAGES]
    assert store.exists(Component.FULL, Group(), keys) == [True] * 5 + [False]
    store = lying(lambda count: [Got(Get.MISS)] * (count - 2))
    blocks = [a_block(page) for page in PAGES]
    got = store.get(SMALL, PAGES, blocks)
    assert [each.failure for each in got] == [None] * 4 + [Failure.SHORT_ANSWER] * 2
    assert not any(any(block[:256]) for block in blocks)
    store = lying(lambda count: [])
    stored = store.put(SMALL, PAGES, [a_block(page) for page in PAGES])
    assert {(each.outcome, each.failure) for each in stored} == {(Put.FAILED, Failure.SHORT_ANSWER)}
    assert store.delete(Component.FULL, Group(), keys) == [Removal.FAILED] * 6
    assert store.stats().put_failed == 6


def test_an_answer_that_is_too_long_says_nothing():
    store = lying(lambda count: [True] * (count + 1))
    assert store.exists(Component.FULL, Group(), [PAGES[0].key]) == [False]


def test_what_a_store_raises_is_an_outcome():
    store = lying(broken)
    keys, blocks = [page.key for page in PAGES], [a_block(page) for page in PAGES]
    assert store.exists(Component.FULL, Group(), keys) == [False] * 6
    assert set(store.get(SMALL, PAGES, blocks)) == {Got(Get.FAILED, Failure.ERROR, "ConnectionError: gone")}
    stored = store.put(SMALL, PAGES, [a_block(page) for page in PAGES])
    assert {each.failure for each in stored} == {Failure.ERROR}
    assert store.delete(Component.FULL, Group(), keys) == [Removal.FAILED] * 6
    assert (store.stats().get_failed, store.stats().put_failed) == (6, 6)


def test_a_hit_that_brought_nothing_is_corrupt():
    store = lying(lambda count: [Got(Get.HIT)] * count)
    blocks = [sealed(page) for page in PAGES]  # what is asked for was there before, by accident
    assert {got.outcome for got in store.get(SMALL, PAGES, blocks)} == {Get.CORRUPT}


def test_a_quarantine_that_fails_does_no_harm():
    class Stuck(MemoryBackend):
        def quarantine(self, shelf, key):
            raise OSError("stuck")

    store = Store(Stuck(ROOMY), an_identity())
    plant(store, PAGES[0], memoryview(bytearray(512)))
    assert get(store, PAGES[:1]) == [Get.CORRUPT]
    assert get(store, PAGES[:1]) == [Get.CORRUPT]


def test_calls_are_cut_into_batches():
    sizes = []

    class Counting(MemoryBackend):
        def read(self, shelf, keys, blocks):
            sizes.append(len(keys))
            return super().read(shelf, keys, blocks)

        def write(self, shelf, headers, blocks):
            sizes.append(len(headers))
            return super().write(shelf, headers, blocks)

    store = Store(Counting(ROOMY), an_identity(), batch_pages=4)
    put(store, PAGES[:2])
    put(store, PAGES)  # the first two are there, and are not sent again
    get(store, PAGES)
    assert sizes == [2, 2, 2, 4, 2]


def test_blocks_of_the_wrong_shape_are_the_callers_fault():
    store = memory_store()
    with pytest.raises(ValueError, match="2 pages need 2 blocks, here are 1"):
        store.get(SMALL, PAGES[:2], [a_block(PAGES[0])])
    with pytest.raises(ValueError, match="has 512 bytes, here are 511"):
        store.get(SMALL, PAGES[:1], [memoryview(bytearray(511))])
    for bad in (memoryview(bytes(512)), memoryview(bytearray(1024))[::2]):
        with pytest.raises(ValueError, match="writable, contiguous"):
            store.put(SMALL, PAGES[:1], [bad])


def test_stats_count_every_outcome():
    store = memory_store()
    put(store, PAGES[:3])
    put(store, PAGES[:4])
    get(store, PAGES)
    plant(store, PAGES[0], memoryview(bytearray(512)))
    get(store, PAGES[:1])
    stats = store.stats()
    assert (stats.written, stats.present, stats.put_failed) == (4, 3, 0)
    assert (stats.hits, stats.misses, stats.corrupt, stats.get_failed) == (4, 2, 1, 0)
    assert (stats.usage.pages, stats.usage.size, stats.usage.orphans) == (3, 3 * 512, 1)


residents = st.integers(1, 14).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(-1, 50), min_size=count, max_size=count),
        st.lists(st.integers(0, 6), min_size=count, max_size=count),
        st.sets(st.integers(0, count - 1)),
    )
)


def forest(parents, uses, missing):
    """Pages whose parents come before them; `missing` ones are not stored."""
    pages: dict[bytes, Resident] = {}
    depths: list[int] = []
    for index, (parent, used) in enumerate(zip(parents, uses, strict=True)):
        above = parent % index if index and parent >= 0 else -1
        depths.append(depths[above] + 1 if above >= 0 else 1)
        name = b"%d" % above if above >= 0 else b""
        pages[b"%d" % index] = Resident(name, depths[-1], used, 1 + index % 3)
    return {name: page for name, page in pages.items() if int(name) not in missing}


def effective(pages, name):
    children = [child for child, page in pages.items() if page.parent == name]
    return max([pages[name].used, *(effective(pages, child) for child in children)])


@settings(deadline=None, max_examples=200)
@given(residents, st.integers(0, 40))
def test_collection_against_the_definition(spec, size):
    pages = forest(*spec)
    order = collection_order(pages)
    assert sorted(order) == sorted(pages)
    assert order == sorted(pages, key=lambda name: (effective(pages, name), -pages[name].depth, name))
    place = {name: index for index, name in enumerate(order)}
    for name, page in pages.items():
        assert page.parent not in place or place[name] < place[page.parent]
    out = victims(pages, size)
    freed = [pages[name].size for name in out]
    assert out == order[: len(out)]
    assert sum(freed) >= size or len(out) == len(pages)
    assert not out or sum(freed[:-1]) < size
    assert collection_order(dict(reversed(pages.items()))) == order


def test_orphans_are_counted():
    pages = {b"b": Resident(b"a", 2, 0, 1), b"c": Resident(b"b", 3, 0, 1), b"r": Resident(b"", 1, 0, 1)}
    assert count_orphans(pages) == 1


def test_watermarks_leave_room_for_whole_pages():
    assert watermarks(1000, 1) == (950, 850)
    assert watermarks(10, 1) == (10, 9)
    assert watermarks(3, 1) == (3, 3)


def test_faults_follow_the_seed():
    def run(seed):
        rates = FaultRates(error=0.2, short=0.2, fail=0.2, lose=0.2, flip=0.3, delay=0.2, delay_seconds=0)
        backend = FaultyBackend(MemoryBackend(ROOMY), rates, seed)
        store = Store(backend, an_identity())
        outcomes = [(put(store, PAGES), get(store, PAGES)) for _ in range(30)]
        return outcomes, dict(backend.injected)

    first, injected = run(3)
    assert run(3) == (first, injected)
    assert run(4) != (first, injected)
    assert set(injected) == set(Fault) and all(injected.values())


@pytest.mark.parametrize("seed", range(5))
def test_under_faults_no_wrong_byte_and_nothing_acknowledged_is_lost(seed):
    chance = Random(seed)
    rates = FaultRates(error=0.1, short=0.1, fail=0.1, flip=0.1)
    store = Store(FaultyBackend(MemoryBackend(ROOMY), rates, seed), an_identity())
    pages = [a_history(each, 1)[0] for each in range(30)]
    acknowledged = set()
    for _ in range(150):
        chosen = chance.choices(pages, k=5)
        if chance.random() < 0.5:
            outcomes = put(store, chosen)
            acknowledged |= {p.key for p, o in zip(chosen, outcomes, strict=True) if o is not Put.FAILED}
        else:
            for page, outcome in zip(chosen, get(store, chosen), strict=True):  # checks the bytes of hits
                assert outcome is not Get.MISS or page.key not in acknowledged
                if outcome is Get.CORRUPT:
                    acknowledged.discard(page.key)
    assert acknowledged


def test_stamps_of_a_chain():
    keys = [page.key for page in PAGES]
    assert chain_stamps(keys, b"", 1, b"") == PAGES
    assert chain_stamps(keys[2:4], keys[1], 3, b"n") == (
        PageStamp(keys[2], keys[1], 3, b"n"),
        PageStamp(keys[3], keys[2], 4, b"n"),
    )
    assert chain_stamps([], b"", 1, b"") == ()


@pytest.mark.parametrize("layout", [SMALL, LARGE])
def test_headers_are_found_without_the_layout(layout):
    assert header_offset_of(layout.block_bytes) == layout.header_offset
    block = sealed(PAGES[1], layout)
    header = peek_header(block[:4096], layout.block_bytes)
    assert header is not None and header.parent == PAGES[0].key
    assert peek_header(b"", layout.block_bytes) is None


def test_urls(tmp_path, monkeypatch):
    assert find_opener("memory:") is open_memory
    for url in ("s3://bucket", "tape:", "redis://host:1"):
        with pytest.raises(StoreUrlError, match=r"store\.url: there is no store .*known are: file, memory"):
            find_opener(url)
    for url in ("", "/tmp/store", "file:/tmp", "no such thing"):
        with pytest.raises(StoreUrlError, match=r"write it as file:///directory .* file, memory"):
            find_opener(url)
    (tmp_path / "my_stores.py").write_text(
        "from stratakv.storage.stores.memory import MemoryBackend\n"
        "number = 3\n"
        "class Mine(MemoryBackend):\n"
        "    def __init__(self, settings, identity, layouts):\n"
        "        super().__init__(settings.capacity)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    store = open_store(StoreSettings(url="my_stores:Mine?x=1", capacity=4096), an_identity(), [SMALL])
    assert type(store.backend).__name__ == "Mine" and put(store, PAGES) == [Put.WRITTEN] * 6
    for url, match in (
        ("no.such.module:Mine", "cannot be imported"),
        ("my_stores:Other", "has no Other"),
        ("my_stores:number", "cannot be called"),
    ):
        with pytest.raises(StoreUrlError, match=match):
            find_opener(url)
    sys.modules.pop("my_stores")
    assert set(STORES.names()) >= {"file", "memory"}


def test_a_capacity_below_one_page():
    with pytest.raises(
        StoreTooSmall, match=r"store\.capacity is 1KiB, but one page takes 69632.*set it to 1MiB"
    ):
        open_store(StoreSettings(url="memory:", capacity=1024), an_identity(), [LARGE])
    assert StoreTooSmall.setting == "store.capacity" and issubclass(StoreTooSmall, StoreError)


def test_the_default_is_in_the_users_cache():
    assert default_url({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == "file:///c/stratakv/store"
    assert default_url({"HOME": "/h x"}) == "file:///h%20x/.cache/stratakv/store"
    assert StoreSettings(url=None).url is None
