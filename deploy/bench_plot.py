"""Plots of the benches. Only here is matplotlib imported, and only when a plot is asked for."""

from collections.abc import Sequence
from pathlib import Path

from stratakv.deploy.bench_report import Figures


class NoPlot(Exception):
    """matplotlib is not installed, or the file cannot be written."""


def plot_multiturn(runs: Sequence[Figures], title: str, file: Path) -> None:
    """Hit rate by round against the workload's ceiling, and median TTFT by round, to `file`. NoPlot says why not."""
    try:
        import matplotlib

        matplotlib.use("Agg")  # no display is needed to write a file
        from matplotlib import pyplot
    except ImportError:
        raise NoPlot("--plot needs matplotlib: pip install matplotlib") from None
    figure, (hits, waits) = pyplot.subplots(2, 1, figsize=(9, 8), sharex=True, layout="constrained")
    turns = range(len(runs[0].ceiling_by_round))
    ceiling = {"color": "black", "linewidth": 1.5, "linestyle": ":", "zorder": 9}
    hits.plot(turns, runs[0].ceiling_by_round, label="the workload's ceiling", **ceiling)
    for run in runs:
        hits.plot(turns, run.hit_rate_by_round, label=run.name, alpha=0.8)
        waits.plot(turns, run.ttft_by_round, label=run.name, alpha=0.8)
    hits.set(title=title, ylabel="hit rate", ylim=(0, 1.02))
    waits.set(xlabel="round", ylabel="median seconds to first token", ylim=(0, None))
    for axes in (hits, waits):
        axes.grid(alpha=0.3)
        axes.legend()
    try:
        figure.savefig(file, dpi=110)
    except (OSError, ValueError) as error:
        raise NoPlot(f"--plot: {file} cannot be written: {error}") from None
    finally:
        pyplot.close(figure)
