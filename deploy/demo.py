"""`stratakv demo`: a cluster of its own, the play of demo_play.py on it, and nothing left of either.

Everything is made for one run: ports, store, cluster. Whatever goes wrong on the way, and on Ctrl-C, all of it goes.
"""

import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stratakv.deploy import demo_settings
from stratakv.deploy.demo_client import Client, ClientError
from stratakv.deploy.demo_play import DemoError, Outcome, Play
from stratakv.deploy.demo_view import View
from stratakv.deploy.demo_watch import Watch, WatchError
from stratakv.deploy.down import take_down
from stratakv.deploy.errand import Errand, ErrandKind, running
from stratakv.deploy.launch import Stay, serve
from stratakv.deploy.narrate import Narrator
from stratakv.deploy.records import ClusterRecord
from stratakv.deploy.settings import StrataSettings
from stratakv.deploy.sources import load

_MAX_TOKENS = 24


class DemoFailed(Exception):
    """The cluster runs, but did not show what the demo is about; says what."""


def run(model: Path, *, keep: bool) -> None:
    """Run the demo with the Hugging Face directory `model`; with `keep` leave the cluster and its store.

    DemoFailed when a hit is missing or an answer differs. SettingsError, UnknownShape, PreflightError, LaunchError and
    DownError as for `serve`.
    """
    began = time.monotonic()
    store = Path(tempfile.mkdtemp(prefix="stratakv-demo-"))
    try:
        settings = load(None, demo_settings.demo_settings(model, store)).settings
        shown = _show(settings, keep=keep)
    except BaseException:
        shutil.rmtree(store, ignore_errors=True)
        raise
    if not keep:
        shutil.rmtree(store, ignore_errors=True)
    if keep:
        print(_how_to_go_on(shown.record, store))
    else:
        print(f"the dashboard was at {shown.record.dashboard_url}; --keep leaves it and the cluster running")
    print(f"{shown.outcome.sentence()} ({time.monotonic() - began:.0f} s)")


@dataclass(frozen=True, slots=True)
class _Shown:
    record: ClusterRecord
    outcome: Outcome


def _show(settings: StrataSettings, *, keep: bool) -> _Shown:
    with Narrator() as narrator:
        record = serve(settings, Stay.HANDED_OVER, narrator)
    try:
        print(f"serving at {record.url}/v1; watch it at {_dashboard(record)}", flush=True)
        outcome = _play(record, settings)
    except BaseException:
        _end(record)
        raise
    if not keep:
        _end(record)
    return _Shown(record, outcome)


def _play(record: ClusterRecord, settings: StrataSettings) -> Outcome:
    assert record.url is not None
    name = settings.model.served_name
    assert name is not None
    try:
        with (
            View() as view,
            _client(record.url, name) as client,
            running(Errand(ErrandKind.WATCH, record)) as child,
        ):
            watch = Watch(record, child)
            return Play(client, watch, view, demo_settings.DEVICE_PAGES, demo_settings.PAGE_SIZE).play()
    except (DemoError, ClientError, WatchError) as error:
        raise DemoFailed(str(error)) from error


@contextmanager
def _client(url: str, model: str) -> Generator[Client]:
    client = Client(url, model, _MAX_TOKENS)
    try:
        yield client
    finally:
        client.close()


def _end(record: ClusterRecord) -> None:
    with Narrator() as narrator:
        take_down(record, 0, narrator)


def _dashboard(record: ClusterRecord) -> str:
    token = f" (token {record.token_file.read_text()})" if record.token_file.exists() else ""
    return f"{record.dashboard_url}{token}"


def _how_to_go_on(record: ClusterRecord, store: Path) -> str:
    body = '{"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}'
    return (
        f"dashboard:     {_dashboard(record)}\n"
        f"talk to it:    curl {record.url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'\n"
        f"take it down:  stratakv down {record.id} && rm -r {store}"
    )
