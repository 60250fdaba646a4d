"""Errands to Ray, from the command's side: start the child that runs them, hear its news, and end it in time."""

import contextlib
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

import msgspec

from stratakv.actors.router.status import RouterStatus
from stratakv.actors.supervisor.status import ClusterStatus
from stratakv.deploy.ray_cluster import environment
from stratakv.deploy.records import ClusterRecord
from stratakv.deploy.settings import StrataSettings


class ErrandKind(StrEnum):
    """What the child shall do."""

    LAUNCH = "launch"
    """Create the cluster and tell its status for ever."""
    STATUS = "status"
    WATCH = "watch"
    """Tell the status of the cluster and of its router for ever."""
    CHECK = "check"
    """Ask every rank for slots that leaked."""
    STOP = "stop"
    """Drain and end all actors."""


@dataclass(frozen=True, slots=True)
class Errand:
    """One errand. `settings` come with LAUNCH, `deadline` (seconds to drain) with STOP."""

    kind: ErrandKind
    record: ClusterRecord
    settings: StrataSettings | None = None
    deadline: float = 0.0


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What the child says: a status, problems found, a passing trouble, or the error that ended it.

    `router` comes with WATCH; None while the router does not answer."""

    status: ClusterStatus | None = None
    router: RouterStatus | None = None
    problems: list[str] = []
    trouble: str | None = None
    error: str | None = None


class ErrandError(Exception):
    """The errand could not be done; says why."""


class Silence(Exception):
    """The child has said nothing within the time given."""


class Child:
    """A running errand. `hear` gives its news in order."""

    def __init__(self, process: subprocess.Popen[bytes]):
        self._process = process
        self._news: queue.SimpleQueue[News | None] = queue.SimpleQueue()
        assert process.stdout is not None
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def hear(self, timeout: float) -> News | None:
        """The next news, None when the child has ended. Silence after `timeout` seconds; ErrandError if it failed."""
        try:
            news = self._news.get(timeout=timeout)
        except queue.Empty:
            raise Silence from None
        if news is not None and news.error is not None:
            raise ErrandError(news.error)
        return news

    def _read(self, output: IO[bytes]) -> None:
        for line in output:
            with contextlib.suppress(msgspec.DecodeError):  # Ray prints, too
                self._news.put(msgspec.json.decode(line, type=News))
        self._news.put(None)


@contextlib.contextmanager
def running(errand: Errand) -> Generator[Child]:
    """Run an errand in a child of its own; it is killed at the end of the block if it still runs."""
    with _log(errand).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from stratakv.deploy.driver import main; main()"],
            env=environment(errand.record),
            cwd=errand.record.directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # a Ctrl-C at the terminal is for the command alone
        )
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pickle.dump(errand, pipe)
        yield Child(process)
    finally:
        process.kill()
        process.wait()


def ask(errand: Errand, timeout: float) -> News:
    """Run an errand that has one answer. ErrandError if it fails or takes longer than `timeout` seconds."""
    with running(errand) as child:
        try:
            news = child.hear(timeout)
        except Silence:
            raise ErrandError(f"no answer from Ray at {errand.record.address} within {timeout:g} s") from None
        if news is None:
            raise ErrandError(f"the driver ended without a word: {_last_line(_log(errand))}")
        return news


def _log(errand: Errand) -> Path:
    return Path(errand.record.directory) / f"driver-{errand.kind}.log"


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "its log is empty")
