"""`bench multiturn` without a cluster: how a round is driven, what figures come of it, and what is refused."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from stratakv.deploy import bench_report, cli
from stratakv.deploy.bench_client import Completion, ServedModel
from stratakv.deploy.bench_drive import DoesNotFit, Run, Sample, drive
from stratakv.deploy.bench_plot import NoPlot, plot_multiturn
from stratakv.deploy.bench_spawn import Pools, PoolTooSmall, Spawn, Tiers, pools_for
from stratakv.deploy.bench_workload import Order, Workload
from stratakv.deploy.demo_client import Account, ClientError

WORKLOAD = Workload(clients=3, rounds=4, new_tokens=10, output_tokens=3, order=Order.FIFO, seed=1, parallel=2)
MODEL = ServedModel("toy", 100, 50, 4)


class FakeServer:
    """Answers 1, 2, 3 ..., as a cache that never loses a page; notes what was asked and how much at once."""

    def __init__(self, broken: set[int] | None = None):
        self.prompts: list[list[int]] = []
        self.broken = broken or set()
        self.under_way = 0
        self.most_under_way = 0

    async def complete(self, model: str, prompt: list[int], outputs: int, salt: str) -> Completion:
        number = len(self.prompts)
        self.prompts.append(prompt)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if number in self.broken:
            raise ClientError("the worker is gone")
        hit = max(0, len(prompt) - 11) // 4 * 4
        account = Account(len(prompt), hit, 0, 0, len(prompt) - hit)
        return Completion([1, 2, 3][:outputs], 0.1, 0.2, account, {"never seen": len(prompt) - hit})


def driven(workload: Workload, server: FakeServer) -> Run:
    return asyncio.run(drive(workload, MODEL, server, lambda: None))


def test_a_history_is_the_ids_sent_and_the_ids_answered():
    server = FakeServer()
    run = driven(replace(WORKLOAD, parallel=1), server)
    first, second = server.prompts[0], server.prompts[3]
    assert second == [*first, 1, 2, 3, *WORKLOAD.fresh(0, 1, 50)]
    assert [len(prompt) for prompt in server.prompts] == [10] * 3 + [23] * 3 + [36] * 3 + [49] * 3
    assert run.histories[0] == server.prompts[9] + [1, 2, 3]
    assert len(run.samples) == 12


def test_a_round_begins_when_the_one_before_it_has_ended_and_no_more_are_at_once_than_allowed():
    server = FakeServer()
    driven(WORKLOAD, server)
    lengths = [len(prompt) for prompt in server.prompts]
    assert lengths == sorted(lengths)
    assert server.most_under_way == 2


def test_a_failed_request_is_named_and_holds_up_nobody():
    server = FakeServer(broken={4})
    run = driven(replace(WORKLOAD, parallel=1), server)
    assert run.failures == ["client 1 in round 1: the worker is gone"]
    assert len(server.prompts) == 3 + 3 + 2 + 2
    assert set(run.histories) == {0, 2}


def test_a_workload_that_cannot_fit_is_refused_before_anything_is_sent():
    server = FakeServer()
    with pytest.raises(DoesNotFit, match=r"130 tokens and toy takes 100.*--rounds"):
        driven(replace(WORKLOAD, rounds=10), server)
    assert server.prompts == []


def sample(
    client: int, turn: int, ttft: float, *, device: int = 0, host: int = 0, computed: int = 0
) -> Sample:
    account = Account(device + host + computed, device, host, 0, computed)
    return Sample(client, turn, ttft, ttft + 1, account, {"evicted": computed})


TWO_ROUNDS = replace(WORKLOAD, clients=2, rounds=2)
SLOW = Run(
    [
        sample(0, 0, 4.0, computed=10),
        sample(1, 0, 2.0, computed=10),
        sample(0, 1, 3.0, device=8, computed=15),
        sample(1, 1, 1.0, host=4, computed=19),
    ],
    [],
    {0: [1, 2], 1: [3, 4]},
    11.0,
)
QUICK = Run(
    [
        sample(0, 0, 0.4, computed=10),
        sample(1, 0, 0.2, computed=10),
        sample(0, 1, 0.3, device=12, computed=11),
        sample(1, 1, 0.1, host=12, computed=11),
    ],
    [],
    {0: [1, 2], 1: [3, 5]},
    2.0,
)


def test_figures_of_a_run():
    figures = bench_report.figures("slow", TWO_ROUNDS, 4, SLOW)
    assert (figures.prompt_tokens, figures.computed_tokens) == (66, 54)
    assert figures.tokens_by_tier == {"device": 8, "host": 4, "store": 0}
    assert figures.computed_by_reason == {"evicted": 54}
    assert figures.hit_rate == pytest.approx(12 / 66)
    assert figures.hit_rate_by_round == [0, pytest.approx(12 / 46)]
    assert figures.ceiling_by_round == [0, pytest.approx(12 / 23)]
    assert figures.of_ceiling == pytest.approx(0.5)
    assert (figures.ttft_median, figures.ttft_p90, figures.ttft_p99) == (2.5, 4.0, 4.0)
    assert figures.ttft_by_round == [3.0, 2.0]
    assert figures.throughput == 6.0


def test_ratios_against_the_first_and_against_the_pool_that_holds_all():
    slow = bench_report.figures("slow", TWO_ROUNDS, 4, SLOW)
    quick = bench_report.figures("quick", TWO_ROUNDS, 4, QUICK)
    ratios = bench_report.ratios([slow, quick], "quick")
    assert ratios["slow"].throughput == 1
    assert ratios["quick"].throughput == pytest.approx(5.5)
    assert ratios["quick"].prefill_only == pytest.approx(54 / 42)
    assert ratios["slow"].of_everything_in_device == pytest.approx(2 / 11)
    assert ratios["quick"].equal_conversations == 1
    assert bench_report.ratios([slow], "quick")["slow"].of_everything_in_device is None


def test_figures_of_a_run_in_which_nothing_was_answered():
    figures = bench_report.figures("none", TWO_ROUNDS, 4, Run([], ["client 0 in round 0: gone"], {}, 1.0))
    assert (figures.hit_rate, figures.ttft_p99, figures.failed) == (0, 0, 1)
    assert figures.hit_rate_by_round == [0, 0]


def test_tables_and_json_hold_the_figures():
    runs = [
        bench_report.figures("slow", TWO_ROUNDS, 4, SLOW),
        bench_report.figures("quick", TWO_ROUNDS, 4, QUICK),
    ]
    ratios = bench_report.ratios(runs, "quick")
    console = Console(width=200)
    with console.capture() as captured:
        console.print(bench_report.rounds_table(runs), bench_report.table(TWO_ROUNDS, runs, ratios))
    assert (
        "5.50" in captured.get() and "2 clients, 2 rounds of 10 + 3 tokens, fifo, 2 at once" in captured.get()
    )
    whole = json.loads(json.dumps(bench_report.as_json(TWO_ROUNDS, runs, ratios, {"model": "toy"})))
    keys = {"prompt_tokens", "computed_tokens", "tokens_by_tier", "hit_rate", "ceiling", "hit_rate_by_round"}
    assert keys | {"ceiling_by_round", "seconds", "ratios"} <= whole["runs"][0].keys()
    assert whole["workload"]["clients"] == 2


def test_a_plot_is_written_or_refused(tmp_path: Path):
    runs = [bench_report.figures("slow", TWO_ROUNDS, 4, SLOW)]
    plot_multiturn(runs, "toy", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(NoPlot, match="--plot"):
        plot_multiturn(runs, "toy", tmp_path / "plot.nothing")


@pytest.mark.parametrize(("percent", "value"), [(50, 2.5), (90, 4), (99, 4), (75, 3), (1, 1)])
def test_percentiles(percent: int, value: float):
    assert bench_report.percentile([3, 1, 4, 2], percent) == value


# -- clusters of its own


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return tmp_path


def test_configurations_differ_in_their_tiers_alone(model: Path, tmp_path: Path):
    spawn = Spawn(model, 4, Pools(20, 40), "wait_complete", "float32", "cpu", None)
    settings = {tiers: spawn.settings(tiers, WORKLOAD, tmp_path / "store") for tiers in Tiers}
    page = 4 * 2 * 2 * 2 * 8 * 4
    assert settings[Tiers.DEVICE].cache.device_memory == 20 * page
    assert settings[Tiers.STORE].cache.device_memory == 20 * page
    assert settings[Tiers.EVERYTHING].cache.device_memory >= WORKLOAD.pages(4) * page
    assert [bool(settings[tiers].cache.host_memory) for tiers in Tiers] == [False, True, True, False]
    assert [settings[tiers].store.url is not None for tiers in Tiers] == [False, False, True, False]
    assert settings[Tiers.STORE].store.prefetch_threshold == 4
    assert len({(s.scheduler, s.model, s.router, s.replicas) for s in settings.values()}) == 1


def test_pools_overflow_by_default_and_always_hold_the_longest_request():
    many = replace(WORKLOAD, clients=20)
    assert pools_for(many, 4, None, 2.0) == Pools(20 * 13 // 4, 130)
    assert pools_for(WORKLOAD, 4, None, 1.5) == Pools(13 + 2, 22)
    assert pools_for(WORKLOAD, 4, 200, 0.5) == Pools(50, 25)
    with pytest.raises(PoolTooSmall, match=r"--device-tokens 40 .* 60 or more"):
        pools_for(WORKLOAD, 4, 40, 2.0)


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one message with which `bench` gives up; its exit code must be 2."""
    monkeypatch.setattr(sys, "argv", ["stratakv", "bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["multiturn", "--page-size", "16"], "--page-size starts clusters and needs --spawn"),
        (["multiturn", "--only", "device"], "--only starts clusters and needs --spawn"),
        (["multiturn", "--spawn", "--url", "http://x"], "--url names a cluster that runs"),
        (["multiturn", "c1", "--url", "http://x"], "CLUSTER and --url"),
        (["multiturn", "--spawn", "--device", "tpu"], "it is cpu or cuda"),
        (["multiturn", "--rounds", "0"], "--rounds"),
        (["multiturn", "--order", "lifo"], "--order"),
        (["multiturn"], "no cluster of this user is running"),
        (["multiturn", "--spawn", "--model", "/none/such"], "/none/such"),
        (["multiturn", "--json", "/none/such/file.json"], "there is no folder /none/such"),
        (["no-reuse", "--blocks", "1"], "--blocks"),
    ],
)
def test_what_is_refused(monkeypatch, capsys, tmp_path: Path, arguments: list[str], words: str):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert words in refused(monkeypatch, capsys, *arguments)


@pytest.mark.parametrize(
    ("flags", "word"),
    [(["--prefetch-policy", "psychic"], "psychic"), (["--device-tokens", "64"], "--device-tokens")],
)
def test_what_is_refused_of_a_spawned_cluster(monkeypatch, capsys, model: Path, flags: list[str], word: str):
    start = ["multiturn", "--spawn", "--model", str(model), "--only", "device+host+store"]
    assert word in refused(monkeypatch, capsys, *start, *flags)
