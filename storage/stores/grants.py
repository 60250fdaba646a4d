"""How processes that share a directory share its capacity: each says in a file how much it may still write.

A process raises its own grant only in its turn, when it has counted what is stored and what the others may still write,
and lowers it as it writes. So what is stored and what is granted never pass the capacity together.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stratakv.storage.stores import folder

_WIDTH = 20
_TURN_PATIENCE = 10.0
_TURN_POLL = 0.005


class Grant:
    """What this process may still write, in the file `path`, for all others to see. Not thread-safe."""

    def __init__(self, path: str):
        self.path = path
        self._descriptor = -1
        self._announced = -1

    def announce(self, size: int) -> None:
        """From here on others count on `size` bytes. OSError."""
        if size != self._announced:
            os.pwrite(self._descriptor, b"%0*d" % (_WIDTH, size), 0)
            self._announced = size

    def refresh(self) -> None:
        """Show that the process lives: a grant that is not refreshed for minutes is taken for abandoned. OSError."""
        if self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink:
            os.utime(self._descriptor)
            return
        self.withdraw()
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def withdraw(self) -> None:
        """Nothing is granted any more. Harmless when repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = self._announced = -1
            with suppress(OSError):
                os.unlink(self.path)


def granted_to_others(root: Path, own: Grant) -> int:
    """Bytes that other processes may still write. OSError."""
    return sum(
        _read(entry.path)
        for home in folder.homes(root)
        for entry in folder.entries(f"{home}/grants")
        if entry.path != own.path
    )


@contextmanager
def turn(root: Path, check: Callable[[], None]) -> Iterator[None]:
    """Hold the directory for a round. `check` is called while waiting; what it raises ends the wait.

    Goes on without it where a file system cannot lock directories, and when a process holds it that has stopped: then
    two may grant the same room to themselves, and the next round of either makes up for it.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    end = time.monotonic() + _TURN_PATIENCE
    try:
        while not _locked(descriptor) and time.monotonic() < end:
            check()
            time.sleep(_TURN_POLL)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # as good as it gets here
    return True


def _read(path: str) -> int:
    with suppress(FileNotFoundError, ValueError), open(path, "rb") as file:
        return int(file.read(_WIDTH) or b"0")
    return 0
