"""The demo as a user runs it: it shows what it claims, and leaves nothing, however it ends."""

from pathlib import Path

import pytest
from e2e import Home, shared_memory, traces

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture
def home(home: Home) -> Home:
    """With a folder for temporary files of its own, so that what is left there is told apart."""
    home.extra["TMPDIR"] = str(home.folder)
    return home


def stores(home: Home) -> list[str]:
    return [str(path) for path in home.folder.glob("stratakv-demo-*")]


def test_the_demo_shows_every_tier_and_leaves_nothing(home: Home, tiny_llama: Path):
    before = shared_memory()
    done = home.run("demo", "--model", str(tiny_llama), timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("every answer equal to the one without cache; "), last
    assert "http://127.0.0.1:" in done.stdout
    assert home.records() == []
    assert shared_memory() == before
    assert stores(home) == []


def test_ctrl_c_leaves_nothing(home: Home, tiny_llama: Path):
    before = shared_memory()
    demo = home.spawn("demo", "--model", str(tiny_llama))
    demo.wait_for("under a fresh cache_salt", 240)
    (record,) = home.records()
    assert traces(record)
    assert demo.interrupt() == 130, demo.output
    assert "nothing of the demo is left" in demo.output
    assert traces(record) == []
    assert home.records() == []
    assert shared_memory() == before
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
