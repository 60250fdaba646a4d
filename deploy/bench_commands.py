"""What each bench command does with its options, and how it fails: one clear message and an exit code.

What a run needs is imported when it starts: the other commands do without the SDK and without torch.
"""

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratakv.actors.worker.config import StartError
from stratakv.deploy import model_fetch, records
from stratakv.deploy.bench_spawn import PoolTooSmall, Spawn, Tiers, pools_for
from stratakv.deploy.bench_workload import Workload
from stratakv.deploy.commands import CommandError
from stratakv.deploy.demo_settings import UnknownShape
from stratakv.deploy.down import DownError
from stratakv.deploy.launch import LaunchError
from stratakv.deploy.narrate import Narrator
from stratakv.deploy.preflight import PreflightError
from stratakv.deploy.sources import SettingsError

_USER = 2
_INTERRUPTED = 130
_DTYPES = {"cpu": "float32", "cuda": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Start:
    """Options of --spawn."""

    model: str | None
    page_size: int
    device_tokens: int | None
    host_ratio: float
    prefetch_policy: str
    device: str
    config: Path | None


def multiturn_on_running(
    cluster: str | None,
    url: str | None,
    workload: Workload,
    spawn_only: Mapping[str, Any],
    json: Path | None,
    plot: Path | None,
) -> None:
    """The workload on a cluster that runs."""
    _refuse_given(spawn_only, "starts clusters and needs --spawn; a cluster that runs has its settings")
    if cluster and url:
        raise CommandError("CLUSTER and --url both name a cluster; give one of them", _USER)
    _check_files(json, plot)
    from stratakv.deploy import bench_multiturn

    with _told():
        bench_multiturn.on_running(url or _url(cluster), workload, bench_multiturn.Output(json, plot))


def multiturn_on_spawned(
    start: Start,
    tiers: list[Tiers],
    running: Mapping[str, Any],
    workload: Workload,
    json: Path | None,
    plot: Path | None,
) -> None:
    """The workload on one cluster after another."""
    _refuse_given(running, "names a cluster that runs, and --spawn starts its own; leave one of them out")
    if start.device not in _DTYPES:
        raise CommandError(f"--device: {start.device!r} is not known; it is cpu or cuda", _USER)
    _check_files(json, plot)
    from stratakv.deploy import bench_multiturn

    with _told():
        spawn = Spawn(
            model=_directory(start.model),
            page_size=start.page_size,
            pools=pools_for(workload, start.page_size, start.device_tokens, start.host_ratio),
            prefetch_policy=start.prefetch_policy,
            dtype=_DTYPES[start.device],
            device=start.device,
            config=start.config,
        )
        chosen = [each for each in Tiers if each in tiers]
        bench_multiturn.on_spawned(spawn, chosen, workload, bench_multiturn.Output(json, plot))


def no_reuse(model: str | None, shape: Mapping[str, int], json: Path | None) -> None:
    """What the tiers cost where nothing repeats."""
    _check_files(json)
    from stratakv.deploy import bench_no_reuse

    logging.basicConfig(level=logging.ERROR)  # the end of the workers is no news here
    with _told():
        bench_no_reuse.run(_directory(model), bench_no_reuse.Shape(**shape), json)


def _refuse_given(options: Mapping[str, Any], why: str) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise CommandError(f"{given[0]} {why}", _USER)


def _check_files(*files: Path | None) -> None:
    """Before a run of minutes whose figures would then be lost."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise CommandError(f"{file}: there is no folder {file.absolute().parent}; make it first", _USER)


def _url(cluster: str | None) -> str:
    record = records.choose(cluster)
    if record.url is None:
        raise records.RecordError(
            f"cluster {record.id} does not serve yet; see `stratakv status {record.id}`"
        )
    return record.url


def _directory(model: str | None) -> Path:
    """The Hugging Face directory; a model that is known by name is fetched if it is missing."""
    given = Path(model or "smollm2").expanduser()
    if given.is_dir():
        return given.absolute()
    with Narrator() as narrator:
        return model_fetch.fetch(model or "smollm2", narrator)


@contextmanager
def _told() -> Generator[None]:
    """What goes wrong inside, as the message and exit code of the command."""
    from stratakv.deploy.bench_drive import DoesNotFit
    from stratakv.deploy.bench_multiturn import RequestsFailed
    from stratakv.deploy.bench_plot import NoPlot
    from stratakv.deploy.bench_report import Broken
    from stratakv.deploy.demo_client import ClientError

    users: tuple[type[Exception], ...] = (
        PreflightError, SettingsError, UnknownShape, PoolTooSmall, DoesNotFit, StartError, NoPlot,
        model_fetch.FetchError, records.RecordError,
    )  # fmt: skip
    try:
        yield
    except users as error:
        raise CommandError(str(error), _USER) from None
    except LaunchError as error:
        raise CommandError(str(error), error.exit_code) from None
    except (DownError, ClientError, RequestsFailed, Broken) as error:
        raise CommandError(str(error), 1) from None
    except KeyboardInterrupt:
        raise CommandError("interrupted; nothing that the bench started is left", _INTERRUPTED) from None
