"""The digest of a model's weights: part of what makes KV bytes mean something, so of every identity."""

import logging
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec

from stratakv.actors.worker.checkpoint import shards

Progress = Callable[[int, int], None]
"""Called with the bytes hashed so far and the bytes to hash in all."""

_log = logging.getLogger(__name__)
_CHUNK = 8 * 2**20
_CACHE_FILE = "weight-digests.json"


class _Known(msgspec.Struct, frozen=True):
    """A file as it was when it was hashed."""

    inode: int
    size: int
    mtime_ns: int
    digest: str = ""

    def is_still(self, file: "_Known") -> bool:
        return (self.inode, self.size, self.mtime_ns) == (file.inode, file.size, file.mtime_ns)


def weights_digest(directory: Path, cache: Path, progress: Progress | None = None) -> str:
    """Hex SHA-256 over the names and SHA-256 digests of the safetensors shards in `directory`.

    The digest of a file is remembered in the directory `cache` by path, inode, size and modification time, so only new
    files are read, and `progress` is told of those. A cache that is damaged or cannot be written costs time and nothing
    else. ModelError when there is no shard or one is damaged, OSError when one cannot be read.
    """
    files = shards(directory)
    known = _recall(cache)
    new = [file for file in files if not _is_known(file, known)]
    meter = _Meter(sum(file.stat().st_size for file in new), progress)
    for file in new:
        known[_path(file)] = _hash(file, meter)
    if new:
        _remember(cache, known)
    lines = [f"{file.name} {known[_path(file)].digest}\n" for file in files]
    return sha256("".join(lines).encode()).hexdigest()


class _Meter:
    """Adds up what has been hashed of `total` bytes."""

    def __init__(self, total: int, progress: Progress | None):
        self._done, self._total, self._progress = 0, total, progress

    def add(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


def _path(file: Path) -> str:
    return str(file.resolve())


def _stat(file: Path) -> _Known:
    stat = file.stat()
    return _Known(inode=stat.st_ino, size=stat.st_size, mtime_ns=stat.st_mtime_ns)


def _is_known(file: Path, known: dict[str, _Known]) -> bool:
    before = known.get(_path(file))
    return before is not None and before.is_still(_stat(file))


def _hash(file: Path, meter: _Meter) -> _Known:
    """Looks at the file's state before it reads, so a file that changes meanwhile is hashed again next time."""
    state = _stat(file)
    digest = sha256()
    chunk = bytearray(_CHUNK)
    view = memoryview(chunk)
    with file.open("rb", buffering=0) as source:
        while count := source.readinto(chunk):
            digest.update(view[:count])
            meter.add(count)
    return msgspec.structs.replace(state, digest=digest.hexdigest())


def _recall(cache: Path) -> dict[str, _Known]:
    try:
        return msgspec.json.decode((cache / _CACHE_FILE).read_bytes(), type=dict[str, _Known])
    except (OSError, msgspec.DecodeError):
        return {}


def _remember(cache: Path, known: dict[str, _Known]) -> None:
    """Replace the file as a whole, so that a reader never sees half of it."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=cache, prefix=_CACHE_FILE, delete=False) as target:
            target.write(msgspec.json.encode(known))
        os.replace(target.name, cache / _CACHE_FILE)
    except OSError as error:
        _log.warning("digests of weight files cannot be remembered in %s: %s", cache, error)
