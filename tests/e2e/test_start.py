"""Starts that fail or are broken off: one clear message, the right exit code, nothing left."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import SMALL, Cluster, Home, eventually, shared_memory, traces

from stratakv.deploy import ports

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
ECHO = {"STRATAKV_SUPERVISOR__WORKER_CLASS": "stratakv.actors.worker.echo:EchoWorker"}


def complaint(home: Home, *arguments: str) -> str:
    """What `serve` says before it gives up. It must give up with exit code 2 and leave nothing."""
    before = shared_memory()
    done = home.run("serve", *arguments)
    assert done.returncode == 2, done.stderr
    assert home.records() == []
    assert shared_memory() == before
    said = [line for line in done.stderr.splitlines() if line.startswith("stratakv: ")]
    assert len(said) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return said[0]


def test_memory_too_small_for_the_running_requests(home: Home, tiny_llama: Path):
    assert "device_memory" in complaint(home, "--model", str(tiny_llama), *SMALL, "--device-memory", "1KiB")


@pytest.mark.full
def test_a_model_without_weights(home: Home, tiny_llama: Path, tmp_path: Path):
    broken = tmp_path / "broken"
    shutil.copytree(tiny_llama, broken, ignore=shutil.ignore_patterns("*.safetensors"))
    assert "broken" in complaint(home, "--model", str(broken), *SMALL)


@pytest.mark.full
def test_an_unknown_worker_class(home: Home, tiny_llama: Path):
    home.extra = {"STRATAKV_SUPERVISOR__WORKER_CLASS": "stratakv.nowhere:Nothing"}
    assert "supervisor.worker_class" in complaint(home, "--model", str(tiny_llama), *SMALL)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_broken_off_leaves_nothing(home: Home, tiny_llama: Path, how: signal.Signals):
    start = home.spawn("serve", "--model", str(tiny_llama), *SMALL)
    start.wait_for("starting Ray")
    record = eventually(lambda: [record for record in home.records() if record.session], 20)[0]
    assert start.interrupt(how) == 130, start.output
    assert traces(record) == []
    assert home.records() == []


@pytest.mark.full
def test_sigterm_ends_a_serving_cluster(home: Home, tiny_llama: Path):
    home.extra = ECHO
    serving = home.spawn("serve", "--model", str(tiny_llama), *SMALL)
    serving.wait_for("stop it with Ctrl-C")
    (record,) = home.records()
    assert serving.interrupt(signal.SIGTERM) == 0, serving.output
    assert traces(record) == []


@pytest.mark.full
def test_a_cluster_whose_command_was_killed_can_be_taken_down(home: Home, tiny_llama: Path):
    home.extra = ECHO
    serving = home.spawn("serve", "--model", str(tiny_llama), *SMALL)
    serving.wait_for("stop it with Ctrl-C")
    (record,) = home.records()
    serving.process.kill()
    serving.process.wait()
    assert home.run("down").returncode == 0
    assert traces(record) == []


@pytest.fixture
def their_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray that is not ours: a cluster's worth of our own head, started as another cluster would be."""
    from stratakv.deploy import processes, ray_cluster, records
    from stratakv.deploy.settings import RaySettings

    state = tmp_path_factory.mktemp("theirs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state))
        settings = RaySettings(auth="disabled")
        record = ray_cluster.new_record(settings, Path("/dev/shm"), "")
        record = ray_cluster.start_head(record, settings, 0)
        yield record.address
        assert processes.end_all(record) == []
        records.remove(record.id)
        shutil.rmtree(record.directory)


@pytest.mark.full
def test_a_running_ray_is_used_and_left_running(home: Home, tiny_llama: Path, their_ray: str):
    home.extra = {**ECHO, "STRATAKV_RAY__AUTH": "disabled"}
    done = home.run("serve", "--detach", "--model", str(tiny_llama), *SMALL, "--ray-address", their_ray)
    assert done.returncode == 0, done.stderr
    (record,) = home.records()
    cluster = Cluster(home, record.id)
    assert cluster.client.models.list().data
    assert home.run("down").returncode == 0
    assert traces(record) == []
    host, _, port = their_ray.rpartition(":")
    assert ports.answers(host, int(port), 5), "Ray is not ours to end"
