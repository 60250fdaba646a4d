"""Records, processes and errands of clusters, without Ray."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stratakv.deploy import errand, ports, processes, ray_cluster, records
from stratakv.deploy.errand import Errand, ErrandError, ErrandKind
from stratakv.deploy.records import ClusterRecord, RayOwner, RecordError
from stratakv.deploy.settings import RaySettings

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(100)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(100)",
]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterRecord:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return ray_cluster.new_record(RaySettings(temp_dir=tmp_path), tmp_path, "m")


class Started:
    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def __call__(self, command: list[str], **options: object) -> int:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
        self.all.append(process)
        assert process.stdout.readline() == b"up\n"
        return process.pid


@pytest.fixture
def start() -> Iterator[Started]:
    started = Started()
    yield started
    for process in started.all:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_record_is_found_again_and_private(record: ClusterRecord):
    assert records.read_all() == [record]
    assert records.choose(None) == record
    (path,) = Path(os.environ["XDG_STATE_HOME"]).rglob("*.json")
    assert path.stat().st_mode & 0o077 == 0
    assert Path(record.directory).stat().st_mode & 0o077 == 0
    records.remove(record.id)
    assert not records.exists(record.id)


def test_choosing_is_refused_when_it_is_not_clear(record: ClusterRecord):
    with pytest.raises(RecordError, match=f"no cluster 'x'; there is {record.id}"):
        records.choose("x")
    records.write(msgspec.structs.replace(record, id="other"))
    with pytest.raises(RecordError, match="several clusters; say which"):
        records.choose(None)
    assert records.choose("other").id == "other"


def test_processes_are_known_by_their_mark(record: ClusterRecord, start: Started):
    marked = start(SLEEP, env={**os.environ, processes.MARK: record.id})
    start(SLEEP, env={**os.environ, processes.MARK: record.id + "x"})
    assert processes.of_cluster(record) == [marked]


def test_unmarked_processes_are_known_by_session_and_folder_together(record: ClusterRecord, start: Started):
    ours = start(SLEEP, cwd=record.directory, start_new_session=True)
    elsewhere = start(SLEEP, start_new_session=True)
    start(SLEEP, cwd=record.directory, start_new_session=True)
    assert processes.of_cluster(record) == []
    assert processes.of_cluster(msgspec.structs.replace(record, session=ours)) == [ours]
    assert processes.of_cluster(msgspec.structs.replace(record, session=elsewhere)) == []


def test_all_are_ended_even_those_that_do_not_listen(record: ClusterRecord, start: Started):
    environment = {**os.environ, processes.MARK: record.id}
    pids = [start(command, env=environment) for command in (SLEEP, STUBBORN)]
    stopped = start(SLEEP, env=environment)
    os.kill(stopped, signal.SIGSTOP)
    bystander = start(SLEEP)
    assert processes.end_all(record) == []
    ends = {process.pid: process.wait(5) for process in start.all if process.pid != bystander}
    assert set(ends) == {*pids, stopped}
    assert start.all[-1].poll() is None


def test_an_errand_that_says_nothing_is_given_up(record: ClusterRecord, monkeypatch: pytest.MonkeyPatch):
    # A port that takes connections and never answers, like a GCS that is stopped.
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        stuck = msgspec.structs.replace(record, address=address, auth="disabled")
        with pytest.raises(ErrandError, match=f"no answer from Ray at {address} within 4 s"):
            errand.ask(Errand(ErrandKind.STATUS, stuck), 4)
        assert processes.of_cluster(record) == [], "the driver must be gone, too"


def test_the_environment_of_ray_is_explicit(record: ClusterRecord, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:1")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of another cluster")
    ours = ray_cluster.environment(record)
    assert "RAY_ADDRESS" not in ours and "RAY_AUTH_TOKEN" not in ours
    assert ours["RAY_AUTH_MODE"] == "token"
    assert ours["RAY_AUTH_TOKEN_PATH"] == str(record.token_file)
    assert ours[processes.MARK] == record.id
    theirs = msgspec.structs.replace(record, ray=RayOwner.THEIRS)
    assert ray_cluster.environment(theirs)["RAY_AUTH_TOKEN"] == "of another cluster"


def test_a_token_is_private(record: ClusterRecord):
    ray_cluster.write_token(record)
    assert record.token_file.stat().st_mode & 0o777 == 0o600
    assert len(record.token_file.read_text()) >= 32


def test_free_ports_are_different_and_free():
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert all(ports.is_free("127.0.0.1", port) for port in found)


def test_a_head_that_does_not_start_is_tried_twice_and_told_of(
    record: ClusterRecord, monkeypatch, tmp_path: Path
):
    tries = tmp_path / "tries"
    fake = tmp_path / "bin" / "ray"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho x >> {tries}\necho no luck today\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake.with_name("python")))
    with pytest.raises(ray_cluster.RayError, match=r"`ray start` ended with 3\): no luck today"):
        ray_cluster.start_head(record, RaySettings(), 0)
    assert tries.read_text() == "x\nx\n"
    written = records.latest(record)
    assert written.session is not None and written.address.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("told", "first", "end"),
    [("32768\t60999\n", 20_768, 32_768), ("16000 65535", 10_000, 16_000), ("1024 65535", 20_768, 32_768)],
)
def test_free_ports_come_from_below_those_of_outgoing_connections(
    tmp_path: Path, told: str, first: int, end: int
) -> None:
    (tmp_path / "range").write_text(told)
    assert ports._below_outgoing(tmp_path / "range") == range(first, end)
    assert ports._below_outgoing(tmp_path / "missing") == range(20_768, 32_768)
