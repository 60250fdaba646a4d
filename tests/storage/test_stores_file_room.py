"""What leaves a file store and what stays: collection, capacity over several processes, trouble with the disk."""

import errno
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

from file_store import FULL, HOUR, PAGE, age, block_files, home, one_page, path_of, run_python

from stratakv.storage.layout import Group
from stratakv.storage.moves import PageStamp
from stratakv.storage.stores import file, folder, gardener, grants
from stratakv.storage.stores.answers import Failure, Get, Put
from stratakv.storage.stores.census import take_census
from stratakv.storage.stores.specimens import (
    LARGE,
    ROOMY,
    SMALL,
    a_block,
    a_history,
    an_identity,
    get,
    put,
    sealed,
)
from stratakv.storage.tiers import Component


def test_pages_leave_by_effective_last_use_then_depth(opened, tmp_path):
    store = opened()
    hot, cold = a_history(1, 3), a_history(2, 3)
    tail = a_history(3, 1, after=cold[1])
    put(store, [*hot, *cold, *tail])
    store.close()
    for page, hours in [
        (hot[0], 9),
        (hot[1], 8),
        (hot[2], 1),
        (cold[0], 2),
        (cold[1], 2),
        (cold[2], 7),
        (tail[0], 5),
    ]:
        age(path_of(tmp_path, page), hours * HOUR)
    leaving = [cold[2], tail[0], cold[1], cold[0], hot[2], hot[1], hot[0]]
    for left in range(6, 0, -1):
        shrunk = opened(capacity=left * PAGE)
        shrunk.backend.gardener.look()
        shrunk.close()
        names = {path.name for path in block_files(tmp_path / "store")}
        assert names == {page.key.hex() for page in leaving[7 - left :]}


def test_being_asked_for_is_use(opened, tmp_path):
    store = opened()
    pages = [one_page(seed) for seed in range(4)]
    put(store, pages)
    for index, page in enumerate(pages):
        age(path_of(tmp_path, page), (9 - index) * HOUR)
    store.exists(Component.FULL, Group(), [pages[0].key])
    get(store, [pages[1]])
    store.close()
    small = opened(capacity=2 * PAGE)
    small.backend.gardener.look()
    assert {path.name for path in block_files(tmp_path / "store")} == {page.key.hex() for page in pages[:2]}


def test_pages_of_other_identities_count_and_leave_too(opened, tmp_path):
    theirs = opened(identity=an_identity(page_size=16))
    put(theirs, a_history(1, 6))
    theirs.close()
    for path in block_files(tmp_path / "store"):
        age(path, HOUR)
    mine = opened(capacity=8 * PAGE)
    pages = [one_page(seed) for seed in range(10, 16)]
    assert put(mine, pages) == [Put.WRITTEN] * 6
    assert len(block_files(tmp_path / "store")) <= 8
    assert get(mine, pages) == [Get.HIT] * 6


def test_what_was_used_since_the_census_stays_with_its_ancestors(opened, tmp_path, monkeypatch):
    store = opened()
    used, other = a_history(1, 3), a_history(2, 3)
    put(store, [*used, *other])
    store.close()
    for path in block_files(tmp_path / "store"):
        age(path, HOUR)

    def census_then_use(*arguments):
        census = take_census(*arguments)
        os.utime(path_of(tmp_path, used[2]))
        return census

    monkeypatch.setattr(gardener, "take_census", census_then_use)
    small = opened(capacity=PAGE)
    small.backend.gardener.look()
    small.close()
    names = {path.name for path in block_files(tmp_path / "store")}
    assert names == {page.key.hex() for page in used}


def test_a_parent_that_gets_a_child_during_a_collection_stays(opened, tmp_path):
    """The window between the last look at a page and its end, for processes of one gardener."""
    store = opened()
    parent = one_page(1)
    put(store, [parent])
    census = take_census(tmp_path / "store", {}, lambda: None)
    found = census.pages[bytes.fromhex(an_identity().digest()) + parent.key]
    put(store, a_history(2, 1, after=parent))
    os.utime(path_of(tmp_path, parent), ns=(found.used, found.used))  # as if within one tick of the clock
    assert not store.backend.gardener._take_out(parent.key, found)
    assert get(store, [parent]) == [Get.HIT]


def test_a_long_history_keeps_its_beginning(opened, tmp_path):
    store = opened(capacity=20 * PAGE)
    pages = a_history(1, 60)
    outcomes = put(store, pages)
    kept = [outcome is Get.HIT for outcome in get(store, pages)]
    assert outcomes[0] is Put.WRITTEN and outcomes[-1] is Put.FAILED
    assert 10 <= sum(kept) <= 20 and kept == sorted(kept, reverse=True)


def test_the_store_keeps_within_what_the_disk_has(opened, tmp_path, monkeypatch):
    def free(root):
        return 10 * PAGE - PAGE * len(block_files(tmp_path / "store"))

    monkeypatch.setattr(folder, "free_bytes", free)
    store = opened()
    for seed in range(30):
        assert put(store, [one_page(seed)]) == [Put.WRITTEN]
        assert free(None) >= 0


def test_usage_is_what_is_there(opened):
    store = opened()
    pages = a_history(1, 4)
    put(store, pages)
    store.delete(Component.FULL, Group(), [pages[1].key])
    store.backend.gardener.look()
    usage = store.stats().usage
    assert (usage.pages, usage.size, usage.orphans, usage.capacity) == (3, 3 * PAGE, 1, ROOMY)
    put(store, [one_page(5)])
    assert (store.stats().usage.pages, store.stats().usage.size) == (4, 4 * PAGE)


def test_what_one_may_still_write_others_do_not(opened, tmp_path):
    """Grants are counted as if they had been written, until their owner is gone."""
    first, second = opened(capacity=100 * PAGE), opened(capacity=100 * PAGE)
    put(first, [one_page(1)])
    granted = max(int(path.read_bytes() or b"0") for path in (home(tmp_path) / "grants").iterdir())
    assert 0 < granted <= 25 * PAGE
    put(second, [one_page(2)])
    both = [int(path.read_bytes() or b"0") for path in (home(tmp_path) / "grants").iterdir()]
    assert len(both) == 2 and sum(both) + 2 * PAGE <= 100 * PAGE and min(both) > 0
    first.close()
    assert len(list((home(tmp_path) / "grants").iterdir())) == 1


def test_room_that_another_was_granted_is_left_alone(opened, tmp_path):
    opened(capacity=100 * PAGE).close()  # makes the folders
    other = home(tmp_path) / "grants/other"
    other.write_text(f"{90 * PAGE}")
    store = opened(capacity=100 * PAGE)
    for seed in range(30):
        assert put(store, [one_page(seed)]) == [Put.WRITTEN]
        mine = sum(int(p.read_bytes() or b"0") for p in other.parent.iterdir() if p != other)
        assert len(block_files(tmp_path / "store")) * PAGE + mine <= 10 * PAGE
    age(other, HOUR)  # its owner is gone
    store.backend.gardener.look()
    assert put(store, [one_page(seed) for seed in range(30, 60)]) == [Put.WRITTEN] * 30
    assert len(block_files(tmp_path / "store")) > 30


def test_a_directory_is_one_processs_at_a_time(tmp_path):
    order = []

    def second():
        with grants.turn(tmp_path, lambda: None):
            order.append("second")

    with grants.turn(tmp_path, lambda: None):
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.05)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]


# Failures while it is open


def test_a_disk_that_runs_full(opened, tmp_path, monkeypatch):
    store = opened()
    pages = [one_page(seed) for seed in range(3)]
    put(store, pages[:1])

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file.os, "pwritev", full)
        stored = store.put(SMALL, pages[1:2], [a_block(pages[1])])[0]
    assert (stored.outcome, stored.failure) == (Put.FAILED, Failure.NO_ROOM)
    assert list((home(tmp_path) / "tmp").iterdir()) == []
    assert put(store, pages[1:]) == [Put.WRITTEN] * 2


def test_a_census_that_fails_fails_puts_until_it_works_again(opened, monkeypatch):
    def unreachable(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(gardener, "take_census", unreachable)
        store = opened()
        stored = store.put(SMALL, [one_page(1)], [a_block(one_page(1))])[0]
        assert (stored.failure, "Input/output" in stored.detail) == (Failure.ERROR, True)
        assert get(store, [one_page(1)]) == [Get.MISS]
    assert put(store, [one_page(1)]) == [Put.WRITTEN]


READ_ONLY = """
import os, sys
from pathlib import Path
from stratakv.storage.stores.opening import open_store
from stratakv.storage.stores.settings import StoreSettings
from stratakv.storage.stores.specimens import *
root = Path(sys.argv[1])
store = open_store(StoreSettings(url=root.as_uri()), an_identity(), [SMALL])
pages = [a_history(seed, 1)[0] for seed in range(2)]
put(store, pages[:1])
store.backend.gardener.look()
for path in [root, *root.rglob("*")]:
    path.chmod(0o555 if path.is_dir() else 0o444)
if os.geteuid() == 0:
    os.seteuid(65534)
print([each.outcome.value for each in store.put(SMALL, pages, [a_block(page) for page in pages])])
print([each.failure and each.failure.value for each in store.put(SMALL, pages, [a_block(page) for page in pages])])
print([outcome.value for outcome in get(store, pages)])
store.close()
"""


def test_a_directory_that_becomes_read_only():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        process = run_python(READ_ONLY, Path(name) / "store")
        output, _ = process.communicate(timeout=60)
        for path in Path(name).rglob("*"):
            path.chmod(0o755)
    assert output.splitlines() == ["['present', 'failed']", "[None, 'error']", "['hit', 'miss']"]


def test_closing_frees_those_who_wait(opened, monkeypatch):
    started = threading.Event()

    def endless(root, known, pause):
        started.set()
        while True:
            pause()

    monkeypatch.setattr(gardener, "take_census", endless)
    store = opened()
    stored = []
    waiting = threading.Thread(
        target=lambda: stored.extend(store.put(SMALL, [one_page(1)], [a_block(one_page(1))]))
    )
    waiting.start()
    assert started.wait(10)
    while not store.backend.gardener._waiting:
        time.sleep(0.001)
    store.close()
    waiting.join(10)
    assert stored[0].failure is Failure.CLOSED


def test_a_file_system_without_links(opened, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(folder.os, "link", refuse)
    store = opened()
    page = one_page(1)
    assert put(store, [page]) == [Put.WRITTEN]
    assert (
        store.backend.write(FULL, [file.peek_header(sealed(page), PAGE)], [sealed(page)])[0].outcome
        is Put.PRESENT
    )
    assert get(store, [page]) == [Get.HIT]
    assert list((home(tmp_path) / "tmp").iterdir()) == []


# Several processes

WRITER = """
import sys
from stratakv.storage.stores.opening import open_store
from stratakv.storage.stores.settings import StoreSettings
from stratakv.storage.stores.specimens import *
url, capacity, first, count, large = sys.argv[1], *map(int, sys.argv[2:])
layout = LARGE if large else SMALL
store = open_store(StoreSettings(url=url, capacity=capacity), an_identity(), [layout])
for seed in range(first, first + count):
    pages = a_history(seed, 4)
    print(seed, *[outcome.value for outcome in put(store, pages, layout)], flush=True)
    get(store, pages, layout)
store.close()
print("done")
"""


def test_two_processes_keep_one_capacity(opened, tmp_path):
    capacity = 40 * PAGE
    url = (tmp_path / "store").as_uri()
    writers = [run_python(WRITER, url, capacity, first, 25, 0) for first in (0, 20)]  # 5 histories in common
    largest = 0
    while any(writer.poll() is None for writer in writers):
        largest = max(largest, sum(1 for _ in block_files(tmp_path / "store")))
        time.sleep(0.005)
    outputs = [writer.communicate(timeout=60)[0] for writer in writers]
    assert [output.splitlines()[-1] for output in outputs] == ["done", "done"]
    assert 25 < largest <= 40
    store = opened(capacity)
    pages = [page for seed in range(45) for page in a_history(seed, 4)]
    outcomes = get(store, pages)  # checks the bytes of hits
    assert outcomes.count(Get.HIT) == len(block_files(tmp_path / "store")) > 20
    assert Get.CORRUPT not in outcomes


def test_a_writer_that_is_killed_leaves_nothing_by_halves(opened, tmp_path):
    writer = run_python(WRITER, (tmp_path / "store").as_uri(), ROOMY, 0, 10_000, 1)
    lines = [writer.stdout.readline() for _ in range(20)]
    time.sleep(0.01)
    writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate(timeout=60)
    acknowledged = [
        int(line.split()[0]) for line in [*lines, *rest.splitlines()] if line.count("written") == 4
    ]
    assert len(acknowledged) >= 20
    left = list((home(tmp_path) / "tmp").iterdir())
    for path in left:
        age(path, HOUR)
    store = opened()
    for seed in acknowledged:
        assert get(store, a_history(seed, 4), LARGE) == [Get.HIT] * 4
    assert {each.size for each in store.scan()} == {LARGE.block_bytes}
    assert all(each.header is not None for each in store.scan())
    store.backend.gardener.look()
    assert list((home(tmp_path) / "tmp").iterdir()) == []


def test_gardeners_that_collect_at_once(opened, tmp_path):
    """Each takes out what the other does, and no more."""
    store = opened()
    for seed in range(40):
        put(store, a_history(seed, 3))
    store.close()
    both = [opened(capacity=60 * PAGE) for _ in range(2)]
    lookers = [threading.Thread(target=each.backend.gardener.look) for each in both]
    for looker in lookers:
        looker.start()
    for looker in lookers:
        looker.join()
    names = {path.name for path in block_files(tmp_path / "store")}
    assert 45 <= len(names) <= 57  # down to 85 %, once
    for each in both[0].scan():
        assert each.header.depth == 1 or each.header.parent.hex() in names


def test_a_page_whose_parent_is_elsewhere_is_not_written(opened):
    store = opened()
    parent, child = a_history(1, 2)
    orphan = PageStamp(child.key, parent.key, 2, b"")
    assert store.put(SMALL, [orphan], [a_block(orphan)])[0].failure is Failure.NO_PARENT
