"""What `stratakv replay` shows and writes: a progress bar, tables, JSON."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from stratakv.cluster.replay.report import Report
from stratakv.cluster.replay.sweep import Sweep
from stratakv.storage.tiers import Tier

_SHOWN_ROUNDS = 15


class Bar:
    """The progress bar of a command, on standard error."""

    def __init__(self, progress: Progress):
        self._progress = progress

    def begin(self, what: str, steps: int) -> Callable[[], None]:
        """A line for `what`, which takes `steps` calls of what is returned."""
        task = self._progress.add_task(what, total=steps)
        return lambda: self._progress.advance(task)


@contextmanager
def progress() -> Iterator[Bar]:
    """A bar that is gone afterwards."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield Bar(shown)


def show_reports(reports: Mapping[str, Report]) -> None:
    """Where the prompt tokens came from, a column for each report."""
    rows = {
        "prompt tokens": [f"{report.prompt_tokens:,}" for report in reports.values()],
        **{
            f"from {tier}": [f"{report.tokens_by_tier[str(tier)]:,}" for report in reports.values()]
            for tier in Tier
        },
        "computed": [f"{report.computed_tokens:,}" for report in reports.values()],
        "hit rate": [f"{report.hit_rate:.4f}" for report in reports.values()],
        "ceiling": [f"{report.ceiling:.4f}" for report in reports.values()],
        "seconds": [f"{report.seconds:.1f}" for report in reports.values()],
    }
    _show("", list(reports), rows)


def show_rounds(reports: Mapping[str, Report]) -> None:
    """Hit rates by round, of some rounds when there are many."""
    ceiling = next(iter(reports.values())).ceiling_by_round
    step = max(1, -(-len(ceiling) // _SHOWN_ROUNDS))
    rows = {
        str(number): [f"{report.hit_rate_by_round[number]:.4f}" for report in reports.values()]
        + [f"{ceiling[number]:.4f}"]
        for number in range(0, len(ceiling), step)
    }
    _show("round", [*reports, "ceiling"], rows)


def show_replicas(report: Report) -> None:
    """What each replica had to do."""
    rows = {
        str(number): [f"{share.requests:,}", f"{share.prompt_tokens:,}", f"{share.computed_tokens:,}"]
        for number, share in enumerate(report.replicas)
    }
    _show("replica", ["requests", "prompt tokens", "computed"], rows)


def show_misses(report: Report) -> None:
    """Why tokens were computed, the most frequent reason first."""
    ranked = sorted(report.misses.items(), key=lambda item: -item[1])
    _show("why computed", ["tokens"], {reason: [f"{tokens:,}"] for reason, tokens in ranked})


def show_sweep(swept: Sweep) -> None:
    """Hit rates by cache size."""
    rows = {
        f"{tokens:,}": [f"{rates[position]:.4f}" for rates in swept.hit_rates.values()]
        for position, tokens in enumerate(swept.tokens)
    }
    _show("tokens of cache", list(swept.hit_rates), rows)


def write_json(file: Path, figures: Report | Mapping[str, Report]) -> None:
    """The figures as JSON. OSError when the file cannot be written."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")


def _show(corner: str, columns: list[str], rows: Mapping[str, list[str]]) -> None:
    table = Table(box=SIMPLE_HEAD)
    table.add_column(corner)
    for column in columns:
        table.add_column(column, justify="right")
    for name, cells in rows.items():
        table.add_row(name, *cells)
    Console().print(table)
