import errno
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from stratakv.storage import slab as slab_module
from stratakv.storage.settings import format_size
from stratakv.storage.slab import (
    HostSlab,
    Origin,
    SlabError,
    SlabTooLarge,
    available_memory,
    filesystem_type,
    is_memory_backed,
    slab_folder,
)

SIZE = 3 * 4096 + 100


def take(directory, size=SIZE, rank=0):
    return HostSlab.open(directory, "test", 0, rank, size)


def names(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_a_new_slab_is_zero_writable_and_allocated(tmp_path):
    slab = take(tmp_path)
    assert slab.origin is Origin.NEW
    assert slab.path == slab_folder(tmp_path, "test") / "0-0" == tmp_path / "stratakv-test" / "0-0"
    assert (slab.size, len(slab.buffer), bytes(slab.buffer)) == (SIZE, SIZE, bytes(SIZE))
    slab.buffer[SIZE - 1] = 7
    assert slab.path.read_bytes()[SIZE - 1] == 7
    stat = slab.path.stat()
    assert stat.st_blocks * 512 >= SIZE
    assert stat.st_mode & 0o077 == 0
    slab.remove()
    assert list(tmp_path.iterdir()) == []


def test_close_keeps_the_file_and_the_next_inherits_it(tmp_path):
    first = take(tmp_path)
    first.buffer[:4] = b"kept"
    first.close()
    first.close()
    second = take(tmp_path)
    assert (second.origin, bytes(second.buffer[:4])) == (Origin.INHERITED, b"kept")
    first.remove()
    assert names(tmp_path) == ["stratakv-test/0-0"]
    second.remove()
    second.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_held_slab_is_left_alone(tmp_path):
    first = take(tmp_path)
    second = take(tmp_path)
    assert (second.origin, second.path.name) == (Origin.NEW, "0-0.1")
    second.buffer[0] = 1
    assert first.buffer[0] == 0
    second.remove()
    assert names(tmp_path) == ["stratakv-test/0-0"]
    first.remove()


def test_ranks_do_not_touch_each_other(tmp_path):
    slabs = [take(tmp_path, rank=rank) for rank in (1, 10)]
    for slab in slabs:
        slab.close()
    take(tmp_path, rank=1).close()
    assert names(tmp_path) == ["stratakv-test/0-1", "stratakv-test/0-10"]


def test_another_size_replaces_the_old_file(tmp_path):
    old = take(tmp_path)
    old.buffer[0] = 1
    old.close()
    new = take(tmp_path, size=2 * SIZE)
    assert (new.origin, new.buffer[0], len(new.buffer)) == (Origin.NEW, 0, 2 * SIZE)
    assert names(tmp_path) == ["stratakv-test/0-0"]
    new.remove()


def test_ownerless_leftovers_are_cleared_away(tmp_path):
    slabs = [take(tmp_path) for _ in range(3)]
    for slab in slabs:
        slab.close()
    assert len(names(tmp_path)) == 3
    survivor = take(tmp_path)
    assert survivor.origin is Origin.INHERITED
    assert names(tmp_path) == ["stratakv-test/0-0"]
    survivor.remove()


def test_views_keep_the_lock(tmp_path):
    slab = take(tmp_path)
    view = np.frombuffer(slab.buffer, np.uint8)
    with pytest.raises(SlabError, match="drop every view"):
        slab.close()
    other = take(tmp_path)
    assert other.path.name == "0-0.1"
    other.remove()
    del view
    slab.close()
    assert take(tmp_path).origin is Origin.INHERITED


def test_remove_is_safe_with_views(tmp_path):
    slab = take(tmp_path)
    view = np.frombuffer(slab.buffer, np.uint8)
    slab.remove()
    assert list(tmp_path.iterdir()) == []
    view[:] = 1
    assert take(tmp_path).buffer[0] == 0


CHILD = """
import sys, time
from pathlib import Path
from stratakv.storage.slab import HostSlab
slab = HostSlab.open(Path(sys.argv[1]), "test", 0, 0, int(sys.argv[2]))
slab.buffer[:5] = b"child"
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def other_process(directory):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory), str(SIZE)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def test_a_stopped_process_keeps_its_slab_and_a_dead_one_leaves_it(tmp_path):
    with other_process(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        successor = take(tmp_path)
        assert (successor.origin, successor.path.name) == (Origin.NEW, "0-0.1")
        successor.remove()
    heir = take(tmp_path)
    assert (heir.origin, bytes(heir.buffer[:5])) == (Origin.INHERITED, b"child")
    heir.remove()
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_machine_has(tmp_path):
    size = available_memory() * 100
    with pytest.raises(SlabTooLarge) as error:
        take(tmp_path, size)
    message = str(error.value)
    assert f"cache.host_memory is {format_size(size)} per rank" in message
    assert "cache.host_directory" in message and "--shm-size" in message
    assert list(tmp_path.iterdir()) == []


def test_more_memory_than_is_available(tmp_path, monkeypatch):
    monkeypatch.setattr(slab_module, "available_memory", lambda: SIZE - 1)
    with pytest.raises(SlabTooLarge, match="of memory available"):
        take(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_running_out_half_way_leaves_nothing(tmp_path, monkeypatch):
    real, calls = os.posix_fallocate, []

    def full_at_the_second(descriptor, offset, length):
        calls.append(offset)
        if offset:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor, offset, length)

    monkeypatch.setattr(slab_module, "_CHUNK", 4096)
    monkeypatch.setattr(os, "posix_fallocate", full_at_the_second)
    with pytest.raises(SlabTooLarge, match=r"cache\.host_memory is .* ran out of room"):
        take(tmp_path)
    assert calls == [0, 4096]
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "posix_fallocate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(SlabError, match=r"cache\.host_directory .*nowhere cannot hold a host slab"):
        take(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SlabError, match=r"cache\.host_directory"):
        take(tmp_path / "file")


def test_a_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    folder = slab_folder(tmp_path, "test")
    folder.mkdir()
    (folder / "0-0").symlink_to(victim)
    with pytest.raises(SlabError):
        take(tmp_path)
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("size", [0, -1])
def test_no_slab_of_nothing(tmp_path, size):
    with pytest.raises(ValueError, match="open no slab"):
        take(tmp_path, size)


@pytest.mark.parametrize("chunk", [4096, 1 << 20])
def test_an_older_kernel_is_touched_page_by_page(tmp_path, monkeypatch, chunk):
    first = take(tmp_path)
    first.buffer[:] = bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)
    before = bytes(first.buffer)
    first.close()
    monkeypatch.setattr(slab_module, "_CHUNK", chunk)
    monkeypatch.setattr(slab_module, "_POPULATE_WRITE", 9999)
    second = take(tmp_path)
    assert (second.origin, bytes(second.buffer)) == (Origin.INHERITED, before)
    second.remove()


def container(folder, limit):
    folder.mkdir()
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text("700\n")
    (folder / "memory.stat").write_text("anon 5\ninactive_file 50\nactive_file 9\n")
    return folder


def test_available_memory_is_bounded_by_the_container(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:  99 kB\nMemFree:  1 kB\nMemAvailable:  2 kB\n")
    assert available_memory(tmp_path, tmp_path / "none") == 2048
    assert available_memory(tmp_path, container(tmp_path / "a", 1000)) == 350
    assert available_memory(tmp_path, container(tmp_path / "b", 100)) == 0
    assert available_memory(tmp_path, container(tmp_path / "c", "max")) == 2048
    assert available_memory(tmp_path, container(tmp_path / "d", 10**9)) == 2048


def test_the_deepest_and_latest_mount_counts(tmp_path):
    mounts = tmp_path / "mounts"
    inner = tmp_path / "with space"
    inner.mkdir()
    encoded = str(inner).replace(" ", r"\040")
    mounts.write_text(
        f"a / ext4 rw 0 0\nb {encoded} nfs rw 0 0\nc {encoded} tmpfs rw 0 0\nd /else xfs rw 0 0\n"
    )
    assert filesystem_type(inner, mounts) == "tmpfs"
    assert filesystem_type(inner / "below", mounts) == "tmpfs"
    assert filesystem_type(tmp_path, mounts) == "ext4"


def test_memory_is_told_from_disk():
    assert is_memory_backed(Path("/dev/shm"))
    assert not is_memory_backed(Path("/proc"))
