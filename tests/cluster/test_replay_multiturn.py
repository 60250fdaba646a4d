"""The multi-turn workload: figures by hand, the figures of the seed, and what holds for every size."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_fakes import alone, ignore

from stratakv.cluster.replay.multiturn import MultiturnSettings, Order, multiturn
from stratakv.cluster.replay.replica import ReplayError, Replica
from stratakv.cluster.replay.settings import ReplicaSettings
from stratakv.cluster.replay.shelf import Shelf
from stratakv.cluster.replay.side_by_side import run_side_by_side
from stratakv.storage.hierarchy_check import idle_problems

# A turn caches 8 + 4 - 1 tokens and more: 2 pages after the first, 5 after the second, 8 after the third.
TINY = MultiturnSettings(clients=2, rounds=3, new_tokens=8, output_tokens=4, page_size=4)
SEED = MultiturnSettings()
DEVICE = 3_552_768


def test_with_room_for_all_only_what_is_new_is_computed() -> None:
    report = alone(TINY, device_tokens=1000)
    assert report.prompt_tokens == 2 * (8 + 20 + 32)
    assert report.computed_tokens == 2 * (8 + (20 - 2 * 4) + (32 - 5 * 4))
    assert report.hit_rate_by_round == [0, 8 / 20, 20 / 32]
    assert report.ceiling_by_round == [0, 12 / 20, 24 / 32]
    assert report.tokens_by_tier == {"device": 2 * 28, "host": 0, "store": 0}


def test_a_full_device_has_lost_what_is_asked_for_next() -> None:
    # Round 1: the first client finds its 2 pages, and the 3 new ones push out both of the second client's.
    two_rounds = TINY.model_copy(update={"rounds": 2})
    report = alone(two_rounds, device_tokens=5 * 4)
    assert report.computed_tokens == 2 * 8 + (20 - 8) + 20
    assert report.tokens_by_tier == {"device": 8, "host": 0, "store": 0}


def test_the_host_gives_back_what_the_device_lost() -> None:
    report = alone(TINY.model_copy(update={"rounds": 2}), device_tokens=5 * 4, host_tokens=10 * 4)
    assert report.tokens_by_tier == {"device": 8, "host": 8, "store": 0}
    assert report.computed_tokens == 2 * (8 + 12)


def test_the_store_gives_back_what_the_host_lost() -> None:
    report = alone(TINY, device_tokens=9 * 4, host_tokens=10 * 4, has_store=True, prefetch_threshold=4)
    assert report.computed_tokens == alone(TINY, device_tokens=1000).computed_tokens
    assert report.tokens_by_tier["store"] > 0


def test_few_pages_are_not_read_from_the_store() -> None:
    fits = {"device_tokens": 9 * 4, "host_tokens": 10 * 4}
    report = alone(TINY, **fits, has_store=True, prefetch_threshold=1000)
    assert report.tokens_by_tier["store"] == 0
    assert report.computed_tokens == alone(TINY, **fits).computed_tokens


def test_a_host_no_larger_than_the_device_does_not_shut_out_the_store() -> None:
    workload = MultiturnSettings(clients=8, rounds=20, new_tokens=256, output_tokens=16, page_size=16)
    fits = {"device_tokens": 8 * 5 * 272, "host_tokens": 8 * 5 * 272}
    report = alone(workload, **fits, has_store=True, prefetch_threshold=16)
    assert report.computed_tokens == alone(workload, device_tokens=10**6).computed_tokens


@given(
    clients=st.integers(1, 5),
    rounds=st.integers(1, 5),
    new=st.integers(1, 40),
    output=st.integers(1, 9),
    page=st.integers(1, 8),
    spare=st.integers(0, 60),
    ratio=st.integers(0, 3),
    order=st.sampled_from(Order),
    eviction=st.sampled_from(["lru", "lfu", "slru", "cost"]),
    write=st.sampled_from(["write_through", "write_through_selective", "write_back"]),
)
@settings(max_examples=60, deadline=None)
def test_never_above_the_ceiling_and_every_token_is_accounted_for(
    clients: int, rounds: int, new: int, output: int, page: int, spare: int, ratio: int, order: Order,
    eviction: str, write: str,
) -> None:  # fmt: skip
    workload = MultiturnSettings(
        clients=clients, rounds=rounds, new_tokens=new, output_tokens=output, page_size=page, order=order
    )
    device = rounds * (new + output) + page + spare
    host = device * ratio
    report = alone(
        workload, device_tokens=device, host_tokens=host, has_store=ratio > 0, prefetch_threshold=page,
        eviction_policy=eviction, write_policy=write if ratio else "write_through",
    )  # fmt: skip
    for hit, ceiling in zip(report.hit_rate_by_round, report.ceiling_by_round, strict=True):
        assert hit <= ceiling
    assert min(report.tokens_by_tier.values()) >= 0
    assert report.prompt_tokens == report.computed_tokens + sum(report.tokens_by_tier.values())
    assert report.computed_tokens == sum(report.misses.values())
    if not ratio:
        assert report.computed_tokens >= alone(workload, device_tokens=10**6).computed_tokens


def test_the_same_seed_gives_the_same_figures_and_another_another() -> None:
    workload = MultiturnSettings(
        clients=6, rounds=8, new_tokens=64, output_tokens=4, page_size=4, order=Order.RANDOM, seed=1
    )
    first, again = (alone(workload, device_tokens=1500).hit_rate_by_round for _ in range(2))
    other = alone(workload.model_copy(update={"seed": 2}), device_tokens=1500).hit_rate_by_round
    assert first == again != other


def test_at_random_the_cliff_is_a_slope() -> None:
    workload = MultiturnSettings(clients=12, rounds=12, new_tokens=64, output_tokens=4, page_size=4)
    device = 12 * 6 * 68
    fifo = alone(workload, device_tokens=device)
    random = alone(workload.model_copy(update={"order": Order.RANDOM}), device_tokens=device)
    assert fifo.hit_rate_by_round[8] == 0 < random.hit_rate_by_round[8] < random.ceiling_by_round[8]


def test_nothing_leaks() -> None:
    replica = Replica(
        ReplicaSettings(page_size=4, device_tokens=40, host_tokens=60, has_store=True, prefetch_threshold=4),
        Shelf(30),
    )
    for request in multiturn(TINY):
        replica.serve(request)
        assert idle_problems(replica.hierarchy) == []


def test_a_prompt_that_cannot_fit_is_named() -> None:
    with pytest.raises(ReplayError, match=r"round 1 of client 0 needs 20 tokens .* raise --device-tokens"):
        alone(TINY, device_tokens=16)


def test_side_by_side_finds_what_one_after_the_other_does() -> None:
    replicas = {
        name: ReplicaSettings(page_size=4, device_tokens=20 + 12 * pages)
        for name, pages in (("small", 1), ("large", 9))
    }
    steps: list[str] = []
    reports = run_side_by_side(TINY, replicas, lambda name: lambda: steps.append(name))
    assert sorted(steps) == ["large"] * 6 + ["small"] * 6
    assert list(reports) == ["small", "large"]
    for name, settings_ in replicas.items():
        expected = alone(TINY, device_tokens=settings_.device_tokens)
        assert reports[name].computed_tokens == expected.computed_tokens


def test_side_by_side_fails_with_the_message_of_the_one_that_failed() -> None:
    replicas = {"tiny": ReplicaSettings(page_size=4, device_tokens=16)}
    with pytest.raises(ReplayError, match="round 1 of client 0 needs 20 tokens"):
        run_side_by_side(TINY, replicas, lambda name: ignore)


def seed_ceiling(number: int) -> Fraction:
    return Fraction(number * 4112, 4096 * (number + 1) + 16 * number)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_figures_of_the_seed() -> None:
    replicas = {
        "device": ReplicaSettings(page_size=64, device_tokens=DEVICE),
        "device+host": ReplicaSettings(page_size=64, device_tokens=DEVICE, host_tokens=2 * DEVICE),
        "store": ReplicaSettings(page_size=64, device_tokens=DEVICE, host_tokens=2 * DEVICE, has_store=True),
    }
    reports = run_side_by_side(SEED, replicas, lambda name: ignore)
    assert {report.prompt_tokens for report in reports.values()} == {361_152_000}
    assert {name: report.computed_tokens for name, report in reports.items()} == {
        "device": 330_252_032,
        "device+host": 234_056_320,
        "store": 11_908_608,
    }
    for name, cliff in (("device", 18), ("device+host", 36)):
        rates = reports[name].hit_rate_by_round
        assert rates[cliff - 1] > 0.94 and rates[cliff] < 0.5 and max(rates[cliff + 1 :]) == 0
    for report in reports.values():
        for number, rate in enumerate(report.hit_rate_by_round):
            assert (
                rate
                <= seed_ceiling(number)
                == Fraction(report.ceiling_by_round[number]).limit_denominator(10**6)
            )


def test_the_cliffs_of_the_seed_with_a_sixteenth_of_its_clients() -> None:
    # Three clients instead of 48, and a device for 18 of their rounds: the falls begin at the same rounds.
    workload = SEED.model_copy(update={"clients": 3, "rounds": 40})
    device = alone(workload, device_tokens=DEVICE // 16)
    host = alone(workload, device_tokens=DEVICE // 16, host_tokens=DEVICE // 8)
    store = alone(workload, device_tokens=DEVICE // 16, host_tokens=DEVICE // 8, has_store=True)
    best = alone(workload, device_tokens=10**8)
    for report, cliff in ((device, 18), (host, 36)):
        assert report.hit_rate_by_round[:cliff] == best.hit_rate_by_round[:cliff]
        assert all(
            rate < bound
            for rate, bound in zip(
                report.hit_rate_by_round[cliff:], best.hit_rate_by_round[cliff:], strict=True
            )
        )
    assert store.computed_tokens == best.computed_tokens
