"""`stratakv bench multiturn`: the workload on a running cluster, or on one cluster after another; then the figures."""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stratakv.deploy import bench_report
from stratakv.deploy.bench_client import BenchClient, ServedModel
from stratakv.deploy.bench_drive import Run, drive
from stratakv.deploy.bench_plot import plot_multiturn
from stratakv.deploy.bench_report import Figures
from stratakv.deploy.bench_spawn import Spawn, Tiers, spawned, store_folder
from stratakv.deploy.bench_workload import Workload


class RequestsFailed(Exception):
    """The run went through, but requests of it failed; names them."""


@dataclass(frozen=True, slots=True)
class Output:
    """Files to write besides the table."""

    json: Path | None
    plot: Path | None


def on_running(url: str, workload: Workload, output: Output) -> None:
    """Run `workload` on the cluster at `url` and show its figures.

    RequestsFailed; ClientError and DoesNotFit before anything is measured; NoPlot.
    """
    figures, run, model = _measure("this cluster", url, workload)
    about = {"url": url, "model": model.name, "page_size": model.page_size}
    _show(workload, [figures], about, output)
    _refuse_failures({"this cluster": run})


def on_spawned(spawn: Spawn, chosen: Sequence[Tiers], workload: Workload, output: Output) -> None:
    """Run `workload` on a cluster for each of the `chosen` configurations in turn, and compare them.

    RequestsFailed, ClientError, DoesNotFit, NoPlot, UnknownShape; SettingsError and the errors of a start and an end.
    """
    figures: list[Figures] = []
    runs: dict[str, Run] = {}
    for tiers in chosen:
        with (
            store_folder() as store,
            spawned(
                spawn.settings(tiers, workload, store), f"{tiers} ({len(runs) + 1} of {len(chosen)})"
            ) as url,
        ):
            measured, runs[tiers], _ = _measure(tiers, url, workload)
            figures.append(measured)
    about = {
        "model": spawn.model.name,
        "page_size": spawn.page_size,
        "device_pages": spawn.pools.device,
        "host_pages": spawn.pools.host,
        "prefetch_threshold": spawn.page_size,
        "prefetch_policy": spawn.prefetch_policy,
        "dtype": spawn.dtype,
        "cpus": os.cpu_count(),
    }
    _show(workload, figures, about, output)
    _refuse_failures(runs)


def _measure(name: str, url: str, workload: Workload) -> tuple[Figures, Run, ServedModel]:
    """One run at `url`, with a progress bar."""

    async def measure() -> tuple[Run, ServedModel]:
        client = BenchClient(url)
        try:
            model = await client.served_model()
            with progress_bar() as bar:
                task = bar.add_task(name, total=workload.clients * workload.rounds)
                return await drive(workload, model, client, lambda: bar.advance(task)), model
        finally:
            await client.close()

    run, model = asyncio.run(measure())
    return bench_report.figures(name, workload, model.page_size, run), run, model


def progress_bar() -> Progress:
    """A bar on stderr with a count and the time gone."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _show(workload: Workload, figures: Sequence[Figures], about: dict[str, Any], output: Output) -> None:
    compared = bench_report.ratios(figures, Tiers.EVERYTHING)
    if output.json:
        whole = bench_report.as_json(workload, figures, compared, about)
        output.json.write_text(json.dumps(whole, indent=1) + "\n")
    console = Console()
    console.print(bench_report.rounds_table(figures), bench_report.table(workload, figures, compared))
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), soft_wrap=True)
    if output.plot:
        plot_multiturn(figures, f"{workload.clients} clients, {workload.order} order", output.plot)


def _refuse_failures(runs: dict[str, Run]) -> None:
    failures = [f"{name}: {failure}" for name, run in runs.items() for failure in run.failures]
    if failures:
        raise RequestsFailed("\n".join([f"{len(failures)} requests failed:", *failures]))
