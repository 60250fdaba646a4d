"""What a run of `stratakv bench multiturn` comes to: figures for the table, for JSON and for the plot."""

import hashlib
import math
import statistics
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from stratakv.deploy.bench_drive import Run
from stratakv.deploy.bench_workload import Workload

TIERS = ("device", "host", "store")


class Broken(Exception):
    """A bench did not measure what it says; tells what it found."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One configuration's run. Seconds and tokens; `throughput` is the effective input throughput: prompt tokens,
    cached ones included, per second of wall time."""

    name: str
    requests: int
    failed: int
    prompt_tokens: int
    computed_tokens: int
    computed_by_reason: dict[str, int]
    tokens_by_tier: dict[str, int]
    hit_rate: float
    ceiling: float
    hit_rate_by_round: list[float]
    ceiling_by_round: list[float]
    ttft_by_round: list[float]
    """median of each round"""
    ttft_median: float
    ttft_p90: float
    ttft_p99: float
    throughput: float
    seconds: float
    conversations: dict[int, str]
    """digest of every finished conversation, by client: equal answers make equal digests"""

    @property
    def of_ceiling(self) -> float:
        """Hit rate as a share of what the workload allows; 1 if it allows none."""
        return self.hit_rate / self.ceiling if self.ceiling else 1.0


def figures(name: str, workload: Workload, page_size: int, run: Run) -> Figures:
    """The figures of `run`. A round in which nothing was answered has hit rate 0 and TTFT 0."""
    accounts = [sample.account for sample in run.samples]
    by_tier = {tier: sum(account.of(tier) for account in accounts) for tier in TIERS}
    prompt = sum(account.prompt for account in accounts)
    rounds = [[sample for sample in run.samples if sample.turn == turn] for turn in range(workload.rounds)]
    reasons: Counter[str] = Counter()
    for sample in run.samples:
        reasons.update(sample.reasons)
    ttfts = [sample.ttft for sample in run.samples]
    return Figures(
        name=name,
        requests=len(run.samples),
        failed=len(run.failures),
        prompt_tokens=prompt,
        computed_tokens=sum(account.computed for account in accounts),
        computed_by_reason=dict(reasons),
        tokens_by_tier=by_tier,
        hit_rate=sum(by_tier.values()) / max(1, prompt),
        ceiling=workload.ceiling(page_size),
        hit_rate_by_round=[
            sum(sample.account.prompt - sample.account.computed for sample in samples)
            / max(1, sum(sample.account.prompt for sample in samples))
            for samples in rounds
        ],
        ceiling_by_round=workload.ceiling_by_round(page_size),
        ttft_by_round=[percentile([sample.ttft for sample in samples], 50) for samples in rounds],
        ttft_median=percentile(ttfts, 50),
        ttft_p90=percentile(ttfts, 90),
        ttft_p99=percentile(ttfts, 99),
        throughput=prompt / run.seconds,
        seconds=run.seconds,
        conversations={client: _digest(ids) for client, ids in run.histories.items()},
    )


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(array("I", ids).tobytes()).hexdigest()[:16]


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest of `values` that `percent` % of them do not exceed, the median as usual; 0 if there are none."""
    if not values:
        return 0.0
    if percent == 50:
        return statistics.median(values)
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


@dataclass(frozen=True, slots=True)
class Ratios:
    """A configuration against the first one of the report, and against the pool that holds everything (if it ran)."""

    throughput: float
    prefill_only: float
    """computed tokens of the first over ours: how much quicker we could be if prefill were all that takes time"""
    of_everything_in_device: float | None
    equal_conversations: int
    """greedy answers do not depend on where KV comes from, but for ties within rounding"""


def ratios(runs: Sequence[Figures], everything: str) -> dict[str, Ratios]:
    """By name of the configuration. `everything` names the run whose device pool holds all."""
    first = runs[0]
    most = next((run for run in runs if run.name == everything), None)
    return {
        run.name: Ratios(
            run.throughput / first.throughput,
            first.computed_tokens / max(1, run.computed_tokens),
            run.throughput / most.throughput if most else None,
            sum(first.conversations.get(client) == digest for client, digest in run.conversations.items()),
        )
        for run in runs
    }


def table(workload: Workload, runs: Sequence[Figures], compared: dict[str, Ratios]) -> Table:
    """A column per configuration."""
    title = (
        f"{workload.clients} clients, {workload.rounds} rounds of {workload.new_tokens} + {workload.output_tokens} "
        f"tokens, {workload.order}, {workload.parallel} at once"
    )
    grid = Table("", *(run.name for run in runs), title=title, title_justify="left")
    for column in grid.columns[1:]:
        column.justify = "right"
    reasons = sorted({reason for run in runs for reason in run.computed_by_reason})
    rows: list[tuple[str, list[str]]] = [
        ("prompt tokens", [f"{run.prompt_tokens:,}" for run in runs]),
        *((f"  from {tier}", [f"{run.tokens_by_tier[tier]:,}" for run in runs]) for tier in TIERS),
        ("  computed", [f"{run.computed_tokens:,}" for run in runs]),
        *(
            (f"    {reason}", [f"{run.computed_by_reason.get(reason, 0):,}" for run in runs])
            for reason in reasons
        ),
        ("hit rate", [f"{run.hit_rate:.4f}" for run in runs]),
        ("  of the workload's ceiling", [f"{run.of_ceiling:.3f}" for run in runs]),
        ("seconds", [f"{run.seconds:.1f}" for run in runs]),
        ("effective input tokens/s", [f"{run.throughput:,.0f}" for run in runs]),
        ("  times the first", [f"{compared[run.name].throughput:.2f}" for run in runs]),
        ("  prefill-only ceiling of that", [f"{compared[run.name].prefill_only:.2f}" for run in runs]),
        ("  of everything in device", [_share(compared[run.name].of_everything_in_device) for run in runs]),
        ("TTFT median, s", [f"{run.ttft_median:.3f}" for run in runs]),
        ("TTFT p90, s", [f"{run.ttft_p90:.3f}" for run in runs]),
        ("TTFT p99, s", [f"{run.ttft_p99:.3f}" for run in runs]),
        ("conversations equal to the first's", [str(compared[run.name].equal_conversations) for run in runs]),
        ("failed requests", [str(run.failed) for run in runs]),
    ]
    for name, cells in rows:
        grid.add_row(name, *cells)
    return grid


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def rounds_table(runs: Sequence[Figures], most: int = 20) -> Table:
    """Hit rate by round beside the ceiling; of more than `most` rounds an evenly spaced selection with the last."""
    grid = Table(
        "round", "ceiling", *(run.name for run in runs), title="Hit rate by round", title_justify="left"
    )
    for column in grid.columns:
        column.justify = "right"
    total = len(runs[0].ceiling_by_round)
    step = -(-total // most)
    for turn in sorted({*range(0, total, step), total - 1}):
        cells = [f"{run.hit_rate_by_round[turn]:.3f}" for run in runs]
        grid.add_row(str(turn), f"{runs[0].ceiling_by_round[turn]:.3f}", *cells)
    return grid


def as_json(
    workload: Workload, runs: Sequence[Figures], compared: dict[str, Ratios], about: Any
) -> dict[str, Any]:
    """All of it, for a file; `about` says what it was run on."""
    return {
        "about": about,
        "workload": asdict(workload),
        "runs": [asdict(run) | {"ratios": asdict(compared[run.name])} for run in runs],
    }
