"""A replica of two ranks on a real cluster: it serves, and whichever rank is hurt, the replica comes back whole."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from e2e import SMALL, Cluster, Home, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Iterator[Cluster]:
    home = Home(tmp_path_factory.mktemp("tensor-parallel"))
    done = home.run("serve", "--detach", "--model", str(tiny_llama), *SMALL, "--tensor-parallel", "2")
    assert done.returncode == 0, done.stderr
    (record,) = home.records()
    yield Cluster(home, record.id)
    home.run("down", record.id, "--drain", "0")


def ranks(cluster: Cluster) -> list[int]:
    """The pids of the ranks, once all are ready."""
    found = eventually(
        lambda: re.search(r": ready, .*rank 0 pid (\d+), rank 1 pid (\d+)", cluster.status), 90
    )
    return [int(pid) for pid in found.groups()]


def ask(cluster: Cluster, text: str = "Hello", max_tokens: int = 8) -> tuple[str | None, int]:
    """The answer, and how many tokens of the prompt were cached."""
    done = cluster.client.chat.completions.create(
        model="tiny-llama",
        messages=[{"role": "user", "content": text}],
        max_tokens=max_tokens,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    return done.choices[0].message.content, done.usage.prompt_tokens_details.cached_tokens


def answers(cluster: Cluster) -> bool:
    try:
        return bool(ask(cluster))
    except (openai.APIStatusError, openai.APIConnectionError):
        return False


def hurt(cluster: Cluster, rank: int, how: signal.Signals, word: str) -> None:
    """Hurt a rank. It is named, and the whole replica comes back as the next generation."""
    before, generation = ranks(cluster), cluster.generation()
    os.kill(before[rank], how)
    eventually(lambda: f"rank {rank} of replica 0 (generation {generation}) {word}" in cluster.status, 60)
    assert not set(ranks(cluster)) & set(before), "all ranks are new"
    assert cluster.generation() == generation + 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)
    eventually(lambda: answers(cluster), 60)


def test_two_ranks_serve_from_the_cache_and_a_stopped_one_is_found_out(cluster: Cluster):
    text = "x" * 200
    first, again = ask(cluster, text), ask(cluster, text)
    assert first[0] == again[0]
    assert again[1] >= 192
    done = cluster.home.run("status", cluster.id, "--check")
    assert done.returncode == 0, done.stderr
    hurt(cluster, 1, signal.SIGSTOP, "has been silent")
    assert ask(cluster, text)[0] == first[0]


@pytest.mark.full
@pytest.mark.parametrize(
    ("rank", "how", "word"),
    [(1, signal.SIGKILL, "died"), (0, signal.SIGKILL, "died"), (0, signal.SIGSTOP, "has been silent")],
)
def test_a_replica_comes_back_whole_whichever_rank_is_hurt(cluster: Cluster, rank, how, word):
    hurt(cluster, rank, how, word)


@pytest.mark.full
def test_a_store_gives_a_new_replica_what_the_old_one_had(cluster: Cluster):
    text = "y" * 400
    said, _ = ask(cluster, text)
    eventually(lambda: cluster.home.run("status", cluster.id, "--check").returncode == 0, 60)
    hurt(cluster, 1, signal.SIGKILL, "died")
    again, cached = ask(cluster, text)
    assert again == said
    assert cached >= 384
