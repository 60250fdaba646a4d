"""Traces: reading them, replicas behind the router, and the offline optimum."""

from pathlib import Path
from random import Random

import pytest
from replay_fakes import ignore, line, prompt, write_trace

from stratakv.cluster.replay.optimum import best_hit_tokens
from stratakv.cluster.replay.request import ReplayRequest
from stratakv.cluster.replay.run import run_alone, run_fleet
from stratakv.cluster.replay.settings import FleetSettings, ReplicaSettings
from stratakv.cluster.replay.shelf import Shelf
from stratakv.cluster.replay.sweep import OPTIMUM, sizes, sweep, sweep_steps
from stratakv.cluster.replay.trace import TraceError, read_trace
from stratakv.storage.moves import PageStamp

REPLICA = ReplicaSettings(page_size=4, device_tokens=100)


def test_only_full_blocks_are_pages_and_one_token_is_always_computed(tmp_path: Path) -> None:
    file = write_trace(
        tmp_path / "trace.jsonl",
        [line(0, 10, [0, 1, 2]), "", line(600_000, 8, [0, 1]), line(600_500, 13, [0, 1, 3, 4])],
    )
    first, second, third = read_trace(file, 4)
    assert [len(request.keys) for request in (first, second, third)] == [2, 2, 3]
    assert first.keys == second.keys == third.keys[:2]
    # All 8 tokens of the second are known, and its last page must be computed for the logits.
    assert [request.seen_tokens for request in (first, second, third)] == [0, 4, 8]
    assert [request.round for request in (first, second, third)] == [0, 2, 2]
    report = run_alone([first, second, third], REPLICA, ignore)
    assert report.tokens_by_tier["device"] == 4 + 8
    assert report.hit_rate == report.ceiling == 12 / 31
    assert report.hit_rate_by_round == [0, 0, 12 / 21]


def test_requests_are_served_by_arrival(tmp_path: Path) -> None:
    file = write_trace(tmp_path / "trace.jsonl", [line(9000, 9, [0, 1, 2]), line(4000, 5, [0, 3])])
    assert [(request.name, request.seconds) for request in read_trace(file, 4)] == [
        ("the request of line 2", 0),
        ("the request of line 1", 5),
    ]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("{", "line 2: Input data was truncated"),
        ("[1, 2]", r"line 2: Expected `object`, got `array`"),
        ({"timestamp": 1}, "line 2: Object missing required field `input_length`"),
        (
            line(1, 5, [0, 1]) | {"input_length": "5"},
            r"line 2: Expected `int`, got `str` - at `\$.input_length`",
        ),
        (line(-1, 5, [0, 1]), "line 2: Expected `float` >= 0"),
        (
            line(1, 5, [0]),
            r"line 2: input_length is 5, which is 2 blocks of 4 tokens \(--block-tokens\), .* 1 ",
        ),
        (line(1, 9, [0, 5, 1]), "line 2: id 1 in hash_ids follows 5 here and 0 on line 1"),
        (line(1, 5, [0, -3]), r"line 2: Expected `int` >= 0 - at `\$.hash_ids"),
        (line(1, 5, [0, 1 << 256]), "line 2: "),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, broken: object, message: str) -> None:
    file = write_trace(tmp_path / "trace.jsonl", [line(0, 9, [0, 1, 2]), broken])
    with pytest.raises(TraceError, match=message):
        read_trace(file, 4)


def test_an_empty_trace_and_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the trace is empty"):
        read_trace(write_trace(tmp_path / "trace.jsonl", [""]), 4)
    with pytest.raises(TraceError, match="nope: No such file"):
        read_trace(tmp_path / "nope", 4)


def conversations(count: int, turns: int) -> list[ReplayRequest]:
    """Conversations that begin with one page in common and go on in a fixed random order, one arrival a second."""
    random, said = Random(3), ["S"] * count
    requests = []
    for second in range(count * turns):
        speaker = random.randrange(count)
        said[speaker] += chr(ord("a") + speaker) * 3
        request = prompt(f"turn {second}", said[speaker])
        requests.append(
            ReplayRequest(0, float(second), request.prompt_tokens, 5, request.keys, 0, request.name)
        )
    return requests


@pytest.mark.parametrize("policy", ["round_robin", "deepest_hit", "least_loaded"])
def test_the_shares_of_the_replicas_add_up(policy: str) -> None:
    requests = conversations(6, 4)
    settings = FleetSettings(replicas=3, router_policy=policy)
    report, again = (run_fleet(requests, REPLICA, settings, ignore) for _ in range(2))
    assert sum(share.requests for share in report.replicas) == len(requests)
    assert sum(share.prompt_tokens for share in report.replicas) == report.prompt_tokens
    assert sum(share.computed_tokens for share in report.replicas) == report.computed_tokens
    assert report.replicas == again.replicas


def test_routing_by_pages_beats_taking_turns() -> None:
    requests = conversations(6, 6)
    hits = {
        policy: run_fleet(
            requests, ReplicaSettings(page_size=4, device_tokens=400), FleetSettings(replicas=3, router_policy=policy),
            ignore,
        ).hit_rate
        for policy in ("round_robin", "deepest_hit")
    }  # fmt: skip
    assert hits["deepest_hit"] > hits["round_robin"]


def test_replicas_share_the_store() -> None:
    requests = conversations(6, 4)
    settings = FleetSettings(replicas=3, router_policy="round_robin", store_pages=None)
    replica = ReplicaSettings(
        page_size=4, device_tokens=200, host_tokens=400, has_store=True, prefetch_threshold=4
    )
    report = run_fleet(requests, replica, settings, ignore)
    assert report.tokens_by_tier["store"] > 0
    assert (
        report.computed_tokens
        == run_alone(requests, ReplicaSettings(page_size=4, device_tokens=10_000), ignore).computed_tokens
    )


def test_a_bounded_shelf_loses_the_coldest_history_from_its_end() -> None:
    shelf = Shelf(4)
    chain = {name: [name.encode() + bytes([n]) for n in range(3)] for name in "ab"}
    stamps = {
        name: [PageStamp(key, keys[n - 1] if n else b"", n + 1, b"") for n, key in enumerate(keys)]
        for name, keys in chain.items()
    }
    shelf.put(stamps["a"])
    shelf.put(stamps["b"][:1])
    assert (
        shelf.read(stamps["a"][:2]) == 2
    )  # what is read moves up, with all before it, and not what is below
    shelf.put(stamps["b"][1:2])
    assert [shelf.leading(chain[name]) for name in "ab"] == [2, 2]
    assert shelf.read(stamps["b"]) == 2
    shelf.put(stamps["b"][2:])
    assert [shelf.leading(chain[name]) for name in "ab"] == [1, 3]
    assert len(shelf) == 4


def test_the_offline_optimum_by_hand() -> None:
    requests = [prompt(text, text) for text in ("AB", "CD", "AB", "EF", "CD", "AB")]
    # With two pages only AB is worth keeping, twice; with four CD as well.
    assert [best_hit_tokens(requests, pages, 4) for pages in (1, 2, 3, 4, 9)] == [8, 16, 20, 24, 24]


def test_no_policy_serves_more_than_the_optimum_and_what_holds_everything_serves_as_much() -> None:
    requests = conversations(8, 6)
    swept = sweep(requests, 4, ignore)
    best = swept.hit_rates[OPTIMUM]
    for rates in swept.hit_rates.values():
        assert all(rate <= bound for rate, bound in zip(rates, best, strict=True))
        assert rates[-1] == best[-1]
    assert best == sorted(best)
    assert swept.tokens == [4 * pages for pages in sizes(requests)]


def test_a_sweep_says_how_long_it_is() -> None:
    requests, steps = conversations(4, 2), list[int]()
    sweep(requests, 4, lambda: steps.append(1))
    assert len(steps) == sweep_steps(requests)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"has_store": True}, "store_tokens asks for a store, and host_tokens is 0"),
        ({"write_policy": "write_back"}, "write_policy is write_back, and host_tokens is 0"),
        ({"device_tokens": 3}, "device_tokens is 3, less than a page of 4 tokens"),
        ({"eviction_policy": "oracle"}, "there is no eviction policy 'oracle'; known are: .*lru"),
    ],
)
def test_settings_that_contradict_each_other(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplicaSettings(**({"page_size": 4, "device_tokens": 40} | changes))
