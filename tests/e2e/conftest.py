import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import SMALL, Cluster, Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A state folder for one test; whatever cluster the test leaves is ended."""
    home = Home(tmp_path)
    yield home
    for record in home.records():
        home.run("down", record.id, "--drain", "0")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Iterator[Cluster]:
    """A real cluster with a tiny model, shared by the tests of a module. Whatever a test kills must come back."""
    home = Home(tmp_path_factory.mktemp("cluster"))
    started = time.monotonic()
    done = home.run("serve", "--detach", "--model", str(tiny_llama), *SMALL)
    assert done.returncode == 0, done.stderr
    print(f"started in {time.monotonic() - started:.0f} s\n{done.stderr}")
    (record,) = home.records()
    yield Cluster(home, record.id)
    home.run("down", record.id, "--drain", "0")
