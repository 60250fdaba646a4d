"""Drives the `stratakv` command the way a user does: in its own processes, with its own state folder."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
import openai

from stratakv.deploy import processes
from stratakv.deploy.records import ClusterRecord

T = TypeVar("T")
STRATAKV = str(Path(sys.executable).with_name("stratakv"))
SHM = Path("/dev/shm")
SMALL = ("--port", "0", "--device-memory", "8MiB", "--host-memory", "8MiB", "--page-size", "16")
"""Flags with which a tiny model is served anywhere."""


@dataclass
class Home:
    """A state folder and a store of its own, and the command run in it."""

    folder: Path
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "XDG_STATE_HOME": str(self.folder / "state"),
            "STRATAKV_STORE__URL": (self.folder / "store").as_uri(),
        }
        return {**os.environ, **own, **self.extra}

    def run(self, *arguments: str, timeout: float = 150) -> subprocess.CompletedProcess[str]:
        command = [STRATAKV, *arguments]
        return subprocess.run(
            command, env=self.environment, cwd=self.folder, text=True, capture_output=True, timeout=timeout
        )

    def spawn(self, *arguments: str) -> "Foreground":
        return Foreground(self, arguments)

    def records(self) -> list[ClusterRecord]:
        paths = sorted((self.folder / "state" / "stratakv" / "clusters").glob("*.json"))
        return [msgspec.json.decode(path.read_bytes(), type=ClusterRecord) for path in paths]


class Foreground:
    """A `stratakv` that stays; what it says can be waited for."""

    def __init__(self, home: Home, arguments: tuple[str, ...]):
        self._output = home.folder / f"output-{time.monotonic_ns()}"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [STRATAKV, *arguments], env=home.environment, cwd=home.folder, stdout=output, stderr=output
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str, timeout: float = 120) -> None:
        def said() -> bool:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.output}"
            return text in self.output

        eventually(said, timeout)

    def interrupt(self, how: signal.Signals = signal.SIGINT, timeout: float = 90) -> int:
        self.process.send_signal(how)
        return self.process.wait(timeout)


@dataclass
class Cluster:
    """A cluster that was started with `serve --detach`."""

    home: Home
    id: str

    @property
    def record(self) -> ClusterRecord:
        return next(record for record in self.home.records() if record.id == self.id)

    @property
    def client(self) -> openai.OpenAI:
        """A client that shows every failure: it never tries again by itself."""
        return openai.OpenAI(base_url=f"{self.record.url}/v1", api_key="none", max_retries=0, timeout=60)

    @property
    def status(self) -> str:
        done = self.home.run("status", self.id)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def worker_pid(self) -> int:
        """Pid of the worker that serves."""
        return int(eventually(lambda: re.search(r": ready, .*rank 0 pid (\d+)", self.status), 60)[1])

    def generation(self) -> int:
        return int(eventually(lambda: re.search(r": ready, generation (\d+)", self.status), 60)[1])

    def pids(self, title: str) -> list[int]:
        """Pids of the cluster's processes whose title starts with `title`, such as `ray::Gateway`."""
        return [pid for pid in processes.of_cluster(self.record) if command_line(pid).startswith(title)]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def eventually(condition: Callable[[], T | None], timeout: float) -> T:
    """The first true value of `condition`; fails if there is none within `timeout` seconds."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.2)
    raise AssertionError(f"not within {timeout:g} s: {condition}")


def traces(record: ClusterRecord) -> list[str]:
    """Whatever is left of a cluster: processes, files in shared memory, its folder."""
    left = [f"process {pid}: {command_line(pid)[:80]}" for pid in processes.of_cluster(record)]
    left += [str(path) for path in SHM.iterdir() if record.id in path.name]
    return left + [folder for folder in (record.directory, record.host_directory) if Path(folder).exists()]


def shared_memory() -> set[str]:
    """What is in shared memory besides the slabs of clusters, which `traces` looks for by their cluster's id."""
    return {path.name for path in SHM.iterdir() if not path.name.startswith("stratakv-")}
