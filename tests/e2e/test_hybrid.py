"""Models with windows of attention and with recurrent state on a real cluster: a conversation is not computed twice,
not even when its worker has died, and `explain` says where it is."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest
from e2e import SMALL, Cluster, Home, eventually
from tiny_models import write_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@dataclass
class Served(Cluster):
    """A cluster and the name of its model."""

    model: str = ""


FAMILIES = [pytest.param("falcon_h1"), pytest.param("gemma2", marks=pytest.mark.full)]


@pytest.fixture(scope="module", params=FAMILIES)
def cluster(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("hybrid")
    model = write_model(folder / request.param, request.param)
    home = Home(folder, {"STRATAKV_STORE__PREFETCH_THRESHOLD": "16", "STRATAKV_SCHEDULER__MAX_RUNNING": "8"})
    done = home.run("serve", "--detach", "--model", str(model), *SMALL)
    assert done.returncode == 0, done.stderr
    (record,) = home.records()
    yield Served(home, record.id, request.param)
    home.run("down", record.id, "--drain", "0")


def ask(cluster: Served, prompt: list[int], salt: str | None = None) -> tuple[list[int], dict[str, int]]:
    """Twelve greedy tokens after `prompt`, and how many tokens of the prompt each tier served."""
    body = {"model": cluster.model, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, "cache_salt": salt}  # fmt: skip
    answer = httpx.post(f"{cluster.record.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return told["choices"][0]["token_ids"], told["usage"]["prompt_tokens_details"]


def test_a_conversation_is_computed_once_also_after_its_worker_has_died(cluster: Served):
    prompt = [n * n % 251 for n in range(100)]
    for turn in range(3):
        said, served = ask(cluster, prompt)
        assert served["cached_tokens"] >= (len(prompt) - 30 if turn else 0)
        prompt = prompt + said + [turn, 7, 9]
    assert ask(cluster, prompt)[0] == ask(cluster, prompt, salt="nothing to reuse")[0]
    before = ask(cluster, prompt)[0]
    os.kill(cluster.worker_pid(), signal.SIGKILL)

    def answered():
        try:
            return ask(cluster, prompt)
        except (AssertionError, httpx.HTTPError, openai.APIError):
            return None

    after, served = eventually(answered, 90)
    assert after == before
    assert served["cached_tokens"] >= len(prompt) - 32, "it comes back from the store"


def test_explain_says_where_it_is(cluster: Served):
    prompt = [n * 3 % 251 for n in range(100)]
    ask(cluster, prompt)
    done = httpx.post(
        f"{cluster.record.url}/v1/explain", json={"model": cluster.model, "prompt": prompt}, timeout=60
    )
    assert done.status_code == 200, done.text
    (replica,) = done.json()["replicas"]
    shares = [replica[f"{part}_tokens"] for part in ("device", "host", "store", "computed")]
    assert sum(shares) == 100 and shares[0] == 96
    assert replica["misses"] == [{"first_token": 96, "tokens": 4, "reason": "page tail"}]
