"""The weights digest: sees every byte, reads a file once, survives a broken memory."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stratakv.actors.worker.checkpoint import ModelError
from stratakv.actors.worker.weights import weights_digest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    for i in range(2):
        save_file({"w": torch.arange(100.0) + i}, directory / f"model-0000{i + 1}-of-00002.safetensors")
    return directory


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class Read:
    """Progress callback that remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append((done, total))


def test_is_the_digest_of_names_and_shard_digests(model, cache):
    files = sorted(model.iterdir())
    lines = "".join(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in files)
    assert weights_digest(model, cache) == hashlib.sha256(lines.encode()).hexdigest()


def test_files_are_read_once(model, cache):
    first, second = Read(), Read()
    digest = weights_digest(model, cache, first)
    size = sum(file.stat().st_size for file in model.iterdir())
    assert first.calls[-1] == (size, size)
    assert weights_digest(model, cache, second) == digest
    assert second.calls == []


def test_a_changed_byte_changes_it(model, cache):
    before = weights_digest(model, cache)
    file = min(model.iterdir())
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    stat = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    read = Read()
    assert weights_digest(model, cache, read) != before
    assert read.calls[-1][1] == stat.st_size  # the other file was remembered


def test_names_count(model, cache):
    before = weights_digest(model, cache)
    for file in sorted(model.iterdir()):
        file.rename(file.with_name(file.name.replace("0000", "1000")))
    assert weights_digest(model, cache) != before


@pytest.mark.parametrize("rubbish", [b"", b"{", b"[1, 2]", b'{"/x": {"inode": "no"}}', b"\xff\xfe"])
def test_a_damaged_cache_is_ignored_and_mended(model, cache, rubbish):
    digest = weights_digest(model, cache)
    (file,) = cache.iterdir()
    file.write_bytes(rubbish)
    assert weights_digest(model, cache) == digest
    read = Read()
    assert weights_digest(model, cache, read) == digest
    assert read.calls == []
    assert list(cache.iterdir()) == [file]


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(model, tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert weights_digest(model, blocked / "cache") == weights_digest(model, tmp_path / "cache")
    assert "cannot be remembered" in caplog.text


def test_no_weights(tmp_path, cache):
    with pytest.raises(ModelError, match="has no safetensors"):
        weights_digest(tmp_path, cache)
