"""The command line: exit codes and messages. Nothing here gets as far as starting Ray."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stratakv.deploy import cli


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def stratakv(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["stratakv", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def refused(monkeypatch, capsys, *arguments: str) -> str:
    """The one message with which a command gives up; its exit code must be 2."""
    assert stratakv(monkeypatch, *arguments) == 2
    return capsys.readouterr().err


def test_version(monkeypatch, capsys):
    assert stratakv(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("stratakv 0.")


def test_config_show_says_where_values_come_from(monkeypatch, capsys, tmp_path: Path):
    config = tmp_path / "s.yaml"
    config.write_text("scheduler: {token_budget: 256}")
    monkeypatch.setenv("STRATAKV_API__PORT", "9000")
    code = stratakv(monkeypatch, "config", "show", "--config", str(config), "--host-memory", "2GiB")
    lines = {
        line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.split()
    }
    assert code == 0
    assert lines["scheduler.token_budget"] == ["256", "file", str(config)]
    assert lines["api.port"] == ["9000", "env", "STRATAKV_API__PORT"]
    assert lines["cache.host_memory"] == ["2GiB", "flag", "--host-memory"]
    assert lines["cache.page_size"] == ["64", "default"]
    assert lines["ray.address"] == ["-", "default"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--replicas", "0"], "replicas"),
        (["--tensor-parallel", "0"], "tensor_parallel"),
        (["--store-capacity", "much"], "store.capacity"),
        (["--host-memory", "0"], "store.url"),
        (["--page-size", "0"], "cache.page_size"),
        (["--device-memory", "much"], "cache.device_memory"),
        (["--router-policy", "best"], "router.policy"),
        (["--model", "/no/such/model"], "model.path"),
        (["--config", "/no/such/file"], "--config"),
        (["--host", "203.0.113.7"], "api.host"),
        (["--page-size", "many"], "--page-size"),
    ],
)
def test_serve_refuses_bad_settings(monkeypatch, capsys, arguments: list[str], word: str):
    message = refused(monkeypatch, capsys, "serve", "--port", "0", *arguments)
    assert word in message
    assert "Traceback" not in message


def test_serve_refuses_a_port_in_use(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        message = refused(monkeypatch, capsys, "serve", "--port", str(taken.getsockname()[1]))
    assert "api.port" in message and "--port" in message


def test_down_without_a_cluster(monkeypatch, capsys):
    assert "no cluster of this user is running" in refused(monkeypatch, capsys, "down")


def test_status_without_a_cluster(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["stratakv", "status"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert "no cluster is running" in capsys.readouterr().out


def test_an_unknown_model_cannot_be_fetched(monkeypatch, capsys):
    assert "there is no model named 'gpt9'" in refused(monkeypatch, capsys, "model", "fetch", "gpt9")


def test_the_command_never_imports_ray_or_torch():
    """Ray reads its environment when it is imported, and torch takes seconds: both belong to other processes."""
    check = (
        "import sys, stratakv.deploy.cli; print(sorted({'ray', 'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
