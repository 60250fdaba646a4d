"""The demo as a user runs it: it shows what it claims, and leaves nothing, however it ends."""

import os
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
from e2e import Foreground, Home, traces

from stratakv.deploy import processes
from stratakv.deploy.records import ClusterRecord

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(600)]


class Running(NamedTuple):
    demo: Foreground
    record: ClusterRecord


@pytest.fixture
def home(home: Home) -> Home:
    """With a folder for temporary files of its own, so that what is left there is told apart."""
    home.extra["TMPDIR"] = str(home.folder)
    return home


def stores(home: Home) -> list[str]:
    return [str(path) for path in home.folder.glob("stratakv-demo-*")]


def started(home: Home, tiny_llama: Path, *flags: str) -> Running:
    """A demo whose turns have begun."""
    demo = home.spawn("demo", "--model", str(tiny_llama), *flags)
    demo.wait_for("turn 1 of the conversation", 240)
    (record,) = home.records()
    assert traces(record)
    return Running(demo, record)


def test_the_demo_shows_every_tier_and_leaves_nothing(home: Home, tiny_llama: Path):
    demo, record = started(home, tiny_llama)
    assert demo.process.wait(400) == 0, demo.output
    assert f"the dashboard was at {record.dashboard_url}" in demo.output
    assert "\nevery answer equal to the one without cache; " in demo.output
    assert traces(record) == []
    assert home.records() == []
    assert stores(home) == []


def test_ctrl_c_leaves_nothing(home: Home, tiny_llama: Path):
    demo, record = started(home, tiny_llama)
    assert demo.interrupt() == 130, demo.output
    assert "nothing of the demo is left" in demo.output
    assert traces(record) == []
    assert home.records() == []
    assert stores(home) == []


def test_a_cluster_that_fails_is_told_and_taken_down(home: Home, tiny_llama: Path):
    demo, record = started(home, tiny_llama)
    for pid in processes.of_cluster(record):
        os.kill(pid, signal.SIGKILL)
    assert demo.process.wait(200) == 1, demo.output
    assert demo.output.splitlines()[-1].startswith("stratakv: ")
    assert "Traceback" not in demo.output
    assert traces(record) == []
    assert home.records() == []
    assert stores(home) == []


def test_keep_leaves_it_serving(home: Home, tiny_llama: Path):
    done = home.run("demo", "--keep", "--model", str(tiny_llama), timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = home.records()
    assert f"stratakv down {record.id}" in done.stdout
    assert f"curl {record.url}/v1/chat/completions" in done.stdout
    assert "ready" in home.run("status", record.id).stdout
    assert home.run("down", record.id).returncode == 0
    assert traces(record) == []
    (store,) = stores(home)
    assert store in done.stdout
