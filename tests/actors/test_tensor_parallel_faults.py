"""What can go wrong among the ranks of a replica: never a hang, never unequal cuts, and the rank at fault is named."""

import signal
from pathlib import Path

import pytest
from replica import Faults, Replica
from tiny_models import write_model

from stratakv.cluster.heartbeat import Cause
from stratakv.storage.stores.faulty import FaultRates
from stratakv.storage.stores.settings import StoreSettings

PROMPTS = [[(a * i * i + 3 * i + a) % 256 for i in range(90 + 11 * a)] for a in range(1, 5)]
READ_AT_ONCE = {"prefetch_threshold": 16, "deadline": 60.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def stored(model: Path, tmp_path_factory: pytest.TempPathFactory) -> StoreSettings:
    """A store that has the pages of all prompts, written by two ranks."""
    folder = tmp_path_factory.mktemp("stored")
    store = StoreSettings(url=(folder / "store").as_uri(), prefetch_policy="wait_complete", **READ_AT_ONCE)
    with Replica(model, 2, folder, store=store) as replica:
        for prompt in PROMPTS:
            replica.ask(prompt)
        replica.check()
    assert {path.name for path in (folder / "store").glob("*/full/*")} == {"g0of2", "g1of2"}
    return store


@pytest.fixture(scope="module")
def expected(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    with Replica(model, 1, tmp_path_factory.mktemp("expected")) as one:
        return [one.ask(prompt).tokens for prompt in PROMPTS]


def test_a_new_generation_takes_all_from_the_store(model, stored, expected, tmp_path):
    with Replica(model, 2, tmp_path, generation=2, store=stored) as replica:
        for prompt, tokens in zip(PROMPTS, expected, strict=True):
            answer = replica.ask(prompt)
            assert answer.tokens == tokens
            assert answer.usage.store == (len(prompt) - 1) // 4 * 4
        replica.check()


def test_ranks_that_are_late_at_random_points_agree(model, stored, expected, tmp_path):
    late = {rank: Faults(late=0.03, store=FaultRates(delay=0.5, delay_seconds=0.05)) for rank in (0, 1)}
    with Replica(model, 2, tmp_path, store=stored, faults=late) as replica:
        told = [replica.ask(prompt) for prompt in PROMPTS]
        assert [answer.tokens for answer in told] == expected
        assert all(answer.usage.store for answer in told)
        replica.check()
        assert replica.verdicts() == []


@pytest.mark.parametrize(
    ("fault", "rate"),
    [
        ("fail", 0.1),
        pytest.param("error", 1.0, marks=pytest.mark.full),
        pytest.param("flip", 0.1, marks=pytest.mark.full),
    ],
)
def test_one_rank_cannot_read_what_the_other_can(model, stored, expected, tmp_path, fault, rate):
    broken = {1: Faults(store=FaultRates(**{fault: rate}))}
    with Replica(model, 2, tmp_path, store=stored, faults=broken) as replica:
        told = [replica.ask(prompt) for prompt in PROMPTS]
        assert [answer.tokens for answer in told] == expected
        missed = [answer.usage.misses.get("not delivered", 0) for answer in told]
        assert sum(missed), "the fault struck nowhere"
        for prompt, answer, lost in zip(PROMPTS, told, missed, strict=True):
            assert answer.usage.store + lost == (len(prompt) - 1) // 4 * 4
        replica.check()


def test_a_rank_killed_in_the_middle_of_a_prefetch_is_named(model, stored, expected, tmp_path):
    slow = {1: Faults(store=FaultRates(delay=1.0, delay_seconds=600))}
    with Replica(model, 2, tmp_path, store=stored, faults=slow) as replica:
        replica.send(PROMPTS[0])
        replica.wait_until(lambda: replica.steps[1] > 2)  # empty plans: both wait for rank 1's reads
        replica.hurt(1, signal.SIGKILL)
        (verdict,) = [each for each in replica.wait_until(replica.verdicts) if each.rank == 1]
        assert verdict.cause is Cause.SILENT
        assert "rank 1" in str(verdict)
        replica.wait_until(lambda: 0 in replica.failures)
    with Replica(model, 2, tmp_path, generation=2, store=stored) as replica:
        assert replica.ask(PROMPTS[0]).tokens == expected[0]
        replica.check()


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.full), 1])
def test_a_rank_stopped_in_the_middle_of_a_step_is_named(model, expected, tmp_path, rank):
    with Replica(model, 2, tmp_path) as replica:
        replica.send(PROMPTS[0], max_tokens=300)
        replica.wait_until(lambda: replica.steps[rank] > 5)
        replica.hurt(rank, signal.SIGSTOP)
        (verdict,) = replica.wait_until(replica.verdicts)
        assert (verdict.rank, verdict.cause) == (rank, Cause.SILENT)
    with Replica(model, 2, tmp_path, generation=2) as replica:
        assert replica.ask(PROMPTS[0]).tokens == expected[0]
