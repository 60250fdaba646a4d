"""A real cluster through its whole life: it answers, survives the death of every actor, and leaves nothing."""

import os
import signal
import threading
from pathlib import Path

import httpx
import openai
import pytest
from e2e import SMALL, Cluster, Home, eventually, shared_memory, traces

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MODEL = "tiny-llama"
LONG = 1500


def chat(cluster: Cluster, text: str = "Hello", max_tokens: int = 8):
    return cluster.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        max_tokens=max_tokens,
        temperature=0,
        extra_body={"ignore_eos": True},
    )


def answers(cluster: Cluster) -> bool:
    try:
        return bool(chat(cluster).choices)
    except (openai.APIStatusError, openai.APIConnectionError):
        return False


class InFlight(threading.Thread):
    """A long request; what became of it is in `outcome`."""

    def __init__(self, cluster: Cluster):
        super().__init__(daemon=True)
        self._cluster = cluster
        self.outcome: object = None
        self.start()
        eventually(self._is_running, 20)

    def run(self) -> None:
        try:
            self.outcome = chat(self._cluster, "a long story", LONG)
        except openai.OpenAIError as error:
            self.outcome = error

    def _is_running(self) -> bool:
        metrics = httpx.get(f"{self._cluster.record.url}/metrics").text
        lines = [line for line in metrics.splitlines() if "running" in line and not line.startswith("#")]
        return any(float(line.rpartition(" ")[2]) > 0 for line in lines)

    def result(self) -> object:
        self.join(60)
        assert not self.is_alive(), "the request hangs"
        return self.outcome


def test_it_answers_and_accounts_for_every_prompt_token(cluster: Cluster):
    text = "x" * 200
    first, second = chat(cluster, text), chat(cluster, text)
    assert first.choices[0].message.content == second.choices[0].message.content
    assert second.usage and second.usage.prompt_tokens_details
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= 192
    assert first.usage and first.usage.completion_tokens == 8


def test_a_stream_says_the_same(cluster: Cluster):
    stream = cluster.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=8,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == chat(cluster).choices[0].message.content


def test_an_idle_cluster_has_leaked_nothing(cluster: Cluster):
    done = cluster.home.run("status", cluster.id, "--check")
    assert done.returncode == 0, done.stderr


def test_a_killed_worker_is_replaced_and_its_request_gets_a_503(cluster: Cluster):
    pid, generation = cluster.worker_pid(), cluster.generation()
    request = InFlight(cluster)
    os.kill(pid, signal.SIGKILL)
    outcome = request.result()
    assert isinstance(outcome, openai.InternalServerError), outcome
    assert outcome.status_code == 503
    eventually(lambda: answers(cluster), 60)
    assert cluster.generation() == generation + 1


def test_a_stopped_worker_is_found_out_and_replaced(cluster: Cluster):
    pid, generation = cluster.worker_pid(), cluster.generation()
    request = InFlight(cluster)
    os.kill(pid, signal.SIGSTOP)
    outcome = request.result()
    assert isinstance(outcome, openai.InternalServerError), outcome
    assert outcome.status_code == 503
    eventually(lambda: answers(cluster), 60)
    assert cluster.generation() == generation + 1
    assert "silent" in cluster.status
    assert not Path(f"/proc/{pid}").exists()


def test_a_killed_gateway_comes_back_by_itself(cluster: Cluster):
    (pid,) = cluster.pids("ray::Gateway")
    worker = cluster.worker_pid()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: cluster.pids("ray::Gateway") not in ([], [pid]), 60)
    eventually(lambda: answers(cluster), 60)
    assert cluster.worker_pid() == worker, "the worker has nothing to do with it"


def test_a_killed_supervisor_comes_back_and_takes_over(cluster: Cluster):
    (pid,) = cluster.pids("ray::Supervisor")
    worker, generation = cluster.worker_pid(), cluster.generation()
    os.kill(pid, signal.SIGKILL)
    assert answers(cluster), "serving does not need the supervisor"
    eventually(lambda: cluster.pids("ray::Supervisor") not in ([], [pid]), 60)
    assert (cluster.worker_pid(), cluster.generation()) == (worker, generation)
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: cluster.generation() == generation + 1, 60)
    eventually(lambda: answers(cluster), 60)


def test_a_worker_that_dies_while_the_supervisor_is_away_is_replaced(cluster: Cluster):
    (pid,) = cluster.pids("ray::Supervisor")
    worker, generation = cluster.worker_pid(), cluster.generation()
    os.kill(pid, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: f": ready, generation {generation + 1}" in cluster.status, 90)
    eventually(lambda: answers(cluster), 60)


def test_a_second_cluster_beside_it_ends_by_ctrl_c(cluster: Cluster, home: Home, tiny_llama: Path):
    before = shared_memory()
    second = home.spawn("serve", "--model", str(tiny_llama), *SMALL)
    second.wait_for("stop it with Ctrl-C")
    (record,) = home.records()
    assert traces(record)
    assert second.interrupt() == 0, second.output
    assert traces(record) == []
    assert home.records() == []
    assert shared_memory() == before
    assert answers(cluster), "the first cluster must not notice"


def test_down_leaves_nothing(cluster: Cluster):
    record = cluster.record
    done = cluster.home.run("down", cluster.id)
    assert done.returncode == 0, done.stderr
    assert traces(record) == []
    assert cluster.home.records() == []
    assert cluster.home.run("status").stdout.startswith("no cluster is running")
