"""Plots of replays. The one module of the replay that imports matplotlib; the command imports it when it draws."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from stratakv.cluster.replay.report import Report
from stratakv.cluster.replay.sweep import OPTIMUM, Sweep


def plot_rounds(file: Path, reports: Mapping[str, Report]) -> None:
    """Hit rate by round, a line for each report, against the ceiling. OSError when `file` cannot be written."""
    figure, axes = _canvas("Hit rate by round")
    ceiling = next(iter(reports.values())).ceiling_by_round
    axes.plot(ceiling, color="black", linewidth=4, alpha=0.2, label="ceiling of the workload")
    for name, report in reports.items():
        axes.plot(report.hit_rate_by_round, label=name)
    axes.set_xlabel("round")
    _finish(figure, axes, file)


def plot_sweep(file: Path, swept: Sweep) -> None:
    """Hit rate against cache size, a line for each eviction policy, the offline optimum and the ceiling. OSError when
    `file` cannot be written."""
    figure, axes = _canvas("Hit rate against cache size")
    axes.axhline(swept.ceiling, color="black", linewidth=4, alpha=0.2, label="unbounded cache")
    for number, (name, rates) in enumerate(swept.hit_rates.items()):
        if name == OPTIMUM:
            axes.plot(swept.tokens, rates, color="black", marker=".", label=name)
        else:
            width = max(1.0, 5.5 - number)  # those that coincide are seen one inside the other
            axes.plot(swept.tokens, rates, linewidth=width, marker=".", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(swept.tokens)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: _short(tokens)))
    axes.set_xlabel("tokens of cache")
    _finish(figure, axes, file)


def _canvas(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_ylabel("prompt tokens served from the cache")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.3)
    return figure, axes


def _finish(figure: Figure, axes: Axes, file: Path) -> None:
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(file, dpi=120)


def _short(tokens: float) -> str:
    return f"{tokens / 2**20:.3g}M" if tokens >= 2**20 else f"{tokens / 2**10:.3g}K"
