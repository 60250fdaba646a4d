"""What only a store of files can get wrong: its directory, its collection over processes, writers that die."""

import errno
import json
import os
from pathlib import Path

import pytest
from file_store import HOUR, PAGE, age, home, one_page, path_of

from stratakv.storage.stores import folder
from stratakv.storage.stores.answers import Get, Put
from stratakv.storage.stores.errors import (
    StoreFull,
    StoreNotShared,
    StoreTooSmall,
    StoreUnusable,
    StoreUrlError,
)
from stratakv.storage.stores.specimens import (
    a_history,
    an_identity,
    get,
    put,
)

# Opening


def test_a_page_has_its_place_and_folders_come_with_pages(opened, tmp_path):
    page = one_page(1)
    put(opened(), [page])
    assert path_of(tmp_path, page).stat().st_size == PAGE
    assert [path.name for path in (home(tmp_path) / "full/g0of1").iterdir()] == [page.key.hex()[:2]]
    assert list((home(tmp_path) / "tmp").iterdir()) == []
    assert json.loads((home(tmp_path) / "identity.json").read_text())["page_size"] == 4


def test_a_file_is_no_directory(opened, tmp_path):
    (tmp_path / "store").write_text("")
    with pytest.raises(StoreUnusable, match=r"store\.url: .*/store is a file; name a directory"):
        opened()
    with pytest.raises(StoreUnusable, match=r"store\.url: .*cannot be read and written.*name a directory"):
        opened(root=tmp_path / "store" / "below")


def test_a_directory_that_cannot_be_written(opened, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(folder.os, "makedirs", refuse)
    with pytest.raises(StoreUnusable, match=r"Permission denied; name a directory that this user may write"):
        opened()


def test_a_full_disk_at_start(opened, monkeypatch):
    monkeypatch.setattr(folder, "free_bytes", lambda root: PAGE - 1)
    with pytest.raises(
        StoreFull, match=r"store\.url: .* is full: 511B free.*make room there or name another"
    ):
        opened()


def test_a_capacity_below_one_page(opened):
    with pytest.raises(StoreTooSmall, match=r"store\.capacity is 511B.*one page takes 512 bytes"):
        opened(capacity=PAGE - 1)
    assert put(opened(capacity=PAGE), [one_page(1)]) == [Put.WRITTEN]


@pytest.mark.parametrize("url", ["file://host/dir", "file:///dir?x=1", "file:///dir#x", "file://"])
def test_urls_that_name_no_directory(url):
    with pytest.raises(StoreUrlError, match="write it as file:///absolute/directory"):
        folder.root_of(url)
    assert folder.root_of("file:///a%20b/c") == Path("/a b/c")


def test_a_capacity_that_the_disk_does_not_have(opened, monkeypatch):
    monkeypatch.setattr(folder, "free_bytes", lambda root: 10 * PAGE)
    store = opened()
    assert "store.capacity is 1GiB, but" in store.remarks()[0] and "has 5KiB free" in store.remarks()[0]


def test_pages_of_another_identity_are_named(opened):
    other = an_identity(page_size=16)
    theirs = opened(identity=other)
    put(theirs, a_history(1, 3))
    assert theirs.remarks() == []
    mine = opened()
    wanted = (
        "this store holds 3 pages under an identity that differs from mine in page_size (4 here, 16 there)"
    )
    assert mine.remarks() == [wanted]


def test_an_identity_that_cannot_be_read(opened, tmp_path):
    other = an_identity(page_size=16)
    put(opened(identity=other), a_history(1, 1))
    (home(tmp_path, other) / "identity.json").write_text("{")
    wanted = "this store holds 1 pages under an identity that says nothing readable of itself"
    assert opened().remarks()[0].startswith(wanted)


def test_two_directories_are_not_one_store(opened, tmp_path):
    head, rank = opened(), opened(root=tmp_path / "elsewhere")
    head.write_nonce("00ff")
    with pytest.raises(StoreNotShared, match=r"store\.url: .*give every rank one shared directory"):
        rank.expect_nonce("00ff", deadline=0.1)


# Bytes that are wrong


def test_a_corrupt_page_is_kept_for_inspection_until_its_room_is_needed(opened, tmp_path):
    store = opened(capacity=3 * PAGE)
    page = one_page(1)
    put(store, [page])
    content = bytearray(path_of(tmp_path, page).read_bytes())
    content[300] ^= 4
    path_of(tmp_path, page).write_bytes(content)
    assert get(store, [page]) == [Get.CORRUPT]
    kept = home(tmp_path) / "quarantine" / f"full-g0of1-{page.key.hex()}"
    assert kept.read_bytes() == bytes(content)
    assert put(store, [one_page(2), one_page(3)]) == [Put.WRITTEN] * 2
    store.backend.gardener.look()
    assert kept.exists()
    assert put(store, [one_page(4)]) == [Put.WRITTEN]
    assert not kept.exists() and get(store, [one_page(2), one_page(3)]) == [Get.HIT] * 2


def test_swapped_and_cut_files(opened, tmp_path):
    store = opened()
    first, second, third = (one_page(seed) for seed in range(3))
    put(store, [first, second, third])
    a, b = path_of(tmp_path, first), path_of(tmp_path, second)
    a.rename(tmp_path / "x")
    b.rename(a)
    (tmp_path / "x").rename(b)
    os.truncate(path_of(tmp_path, third), 100)
    assert get(store, [first, second, third]) == [Get.CORRUPT] * 3
    assert store.stats().corrupt == 3
    assert put(store, [first, second, third]) == [Put.WRITTEN] * 3


def test_a_link_is_not_followed(opened, tmp_path):
    store = opened()
    page = one_page(1)
    put(store, [page])
    path_of(tmp_path, page).rename(tmp_path / "elsewhere")
    path_of(tmp_path, page).symlink_to(tmp_path / "elsewhere")
    assert get(store, [page]) == [Get.FAILED]


# Collection


def test_what_others_have_in_the_directory_stays(opened, tmp_path):
    theirs = [tmp_path / "store" / name for name in ("tmp/x", "notes.txt", "full/g0of1/ab/" + "c" * 64)]
    theirs.append(home(tmp_path) / "full/g0of1/notes/x")
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine" * 100)
        age(path, 24 * HOUR)
    store = opened(capacity=2 * PAGE)
    for seed in range(6):
        put(store, [one_page(seed)])
    assert all(path.exists() for path in theirs)


def test_what_dead_writers_left_is_removed_and_what_living_ones_write_is_not(opened, tmp_path):
    opened().close()
    old, new = home(tmp_path) / "tmp/host.1.0", home(tmp_path) / "tmp/host.2.0"
    for path in (old, new):
        path.write_bytes(b"x" * 100)
    age(old, HOUR)
    opened().backend.gardener.look()
    assert (old.exists(), new.exists()) == (False, True)
