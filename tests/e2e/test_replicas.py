"""Two replicas over one store: what is computed once is computed once, whoever dies."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from e2e import SMALL, Cluster, Home, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

FLAGS = (*SMALL, "--replicas", "2")
PAGE = 16


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Iterator[Cluster]:
    home = Home(tmp_path_factory.mktemp("pair"))
    cluster = start(home, tiny_llama)
    yield cluster
    home.run("down", cluster.id, "--drain", "0")


def start(home: Home, model: Path) -> Cluster:
    done = home.run("serve", "--detach", "--model", str(model), *FLAGS)
    assert done.returncode == 0, done.stderr
    (record,) = home.records()
    return Cluster(home, record.id)


class Conversation:
    """A growing chat. Every turn is compared with the same request under a salt of its own."""

    def __init__(self, subject: str):
        self.messages = [{"role": "user", "content": f"Tell me about {subject}. " + subject * 60}]
        self.turns = 0
        self.cacheable = 0
        """Tokens that the next turn must find in some tier."""

    def turn(self, cluster: Cluster) -> dict[str, int]:
        """Take one turn. What each tier gave."""
        answer, usage = self.ask(cluster)
        plain, cold = self.ask(cluster, cache_salt=f"{id(self)} {self.turns}")
        assert answer == plain
        assert cold.prompt_tokens_details.cached_tokens == 0
        details = usage.prompt_tokens_details
        assert details.cached_tokens >= self.cacheable
        tiers = details.model_extra["cached_tokens_by_tier"]
        assert sum(tiers.values()) + details.model_extra["computed_tokens"] == usage.prompt_tokens
        self.cacheable = (usage.prompt_tokens + usage.completion_tokens - 1) // PAGE * PAGE
        self.turns += 1
        self.messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]
        return tiers

    def ask(self, cluster: Cluster, **extra: object):
        done = cluster.client.chat.completions.create(
            model="tiny-llama", messages=self.messages, max_tokens=20, temperature=0, extra_body=extra
        )
        return done.choices[0].message.content, done.usage


def settled(cluster: Cluster) -> bool:
    """Idle, nothing leaked, every write to the store done."""
    return cluster.home.run("status", cluster.id, "--check").returncode == 0


def workers(cluster: Cluster) -> dict[int, int]:
    """Pid of each replica that is ready."""
    found = re.findall(r"replica (\d+): ready, .*rank 0 pid (\d+)", cluster.status)
    return {int(replica): int(pid) for replica, pid in found}


def ready_again(cluster: Cluster, killed: set[int]) -> None:
    eventually(lambda: len(workers(cluster)) == 2 and not killed & set(workers(cluster).values()), 120)


def test_a_conversation_goes_where_its_pages_are(pair: Cluster):
    talks = [Conversation(f"subject {i}") for i in range(4)]
    for talk in talks:
        talk.turn(pair)
    for talk in reversed(talks):
        assert talk.turn(pair)["device"] >= 300
    eventually(lambda: settled(pair), 60)


def test_when_all_workers_have_died_the_store_gives_it_back(pair: Cluster):
    talk = Conversation("the sea")
    talk.turn(pair)
    eventually(lambda: settled(pair), 60)
    killed = set(workers(pair).values())
    assert len(killed) == 2
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    ready_again(pair, killed)
    assert talk.turn(pair)["store"] >= 300


def test_when_one_worker_dies_the_other_goes_on(pair: Cluster):
    talk = Conversation("a mountain")
    talk.turn(pair)
    eventually(lambda: settled(pair), 60)
    for replica in (0, 1):
        pid = workers(pair)[replica]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: goes_on(talk, pair), 60)
        ready_again(pair, {pid})


def goes_on(talk: Conversation, cluster: Cluster) -> bool:
    """A turn, or a clean 503 while the death is not known yet."""
    try:
        talk.turn(cluster)
    except openai.InternalServerError as error:
        assert error.status_code == 503
        assert "retry-after" in error.response.headers
        return False
    return True


def test_without_a_router_answers_go_on_and_a_new_one_knows_all(pair: Cluster):
    talk = Conversation("a river")
    talk.turn(pair)
    (pid,) = pair.pids("ray::Router")
    os.kill(pid, signal.SIGKILL)
    Conversation("a lake").turn(pair)
    eventually(lambda: pair.pids("ray::Router") not in ([], [pid]), 60)
    talk.turn(pair)
    assert talk.turn(pair)["device"] >= 300


def test_a_new_cluster_finds_what_an_old_one_stored(home: Home, tiny_llama: Path):
    talk = Conversation("yesterday")
    first = start(home, tiny_llama)
    talk.turn(first)
    eventually(lambda: settled(first), 60)
    assert home.run("down", first.id).returncode == 0
    assert talk.turn(start(home, tiny_llama))["store"] >= 300
