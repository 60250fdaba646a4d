"""From settings to a cluster that answers: start Ray, create the supervisor, wait, and stay or leave.

Whatever goes wrong on the way, nothing is left behind: no process, no file, no record.
"""

import signal
import time
import urllib.error
import urllib.request
from enum import StrEnum
from types import FrameType

import msgspec

from stratakv.actors.supervisor.status import ClusterStatus, ReplicaPhase, ReplicaStatus
from stratakv.deploy import ports, preflight, ray_cluster, records
from stratakv.deploy.down import take_down
from stratakv.deploy.errand import Child, Errand, ErrandError, ErrandKind, Silence, running
from stratakv.deploy.narrate import Narrator
from stratakv.deploy.records import ClusterRecord, RayOwner
from stratakv.deploy.settings import StrataSettings
from stratakv.storage.settings import format_size

_SILENCE = 60.0
_DRAIN = 5.0
_GATEWAY_DEADLINE = 30.0


class Stay(StrEnum):
    """What `serve` does once the cluster answers."""

    FOREGROUND = "foreground"
    """Wait for Ctrl-C or SIGTERM, then take it down."""
    DETACHED = "detached"
    """Leave it running."""
    HANDED_OVER = "handed over"
    """Leave it running and say nothing of it: the caller does, and ends it."""


class LaunchError(Exception):
    """The cluster could not be started, or could not go on. `exit_code` is 2 if settings or model are to blame."""

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


def serve(settings: StrataSettings, stay: Stay, narrator: Narrator) -> ClusterRecord:
    """Start a cluster and stay, or leave. LaunchError, PreflightError, or KeyboardInterrupt during the start.

    SIGTERM and SIGHUP mean KeyboardInterrupt from here on.
    """
    preflight.check(settings)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    settings = _settled(settings)
    record = ray_cluster.new_record(settings.ray, settings.cache.host_directory, settings.model.path)
    try:
        return _serve(record, settings, stay, narrator)
    except BaseException:
        take_down(records.latest(record), 0, narrator)
        raise


def _settled(settings: StrataSettings) -> StrataSettings:
    """The settings with what is to be chosen chosen: a restarted gateway must find its old port again."""
    api, ray = settings.api, settings.ray
    if api.port == 0:
        api = api.model_copy(update={"port": ports.free_ports(1)[0]})
    if ray.address:
        ray = ray.model_copy(update={"address": preflight.running_ray(ray.address)})
    return settings.model_copy(update={"api": api, "ray": ray})


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _serve(record: ClusterRecord, settings: StrataSettings, stay: Stay, narrator: Narrator) -> ClusterRecord:
    if record.ray is RayOwner.OURS:
        narrator.doing("starting Ray")
        try:
            record = ray_cluster.start_head(
                record, settings.ray, 0 if settings.model.device == "cpu" else None
            )
        except ray_cluster.RayError as error:
            raise LaunchError(str(error)) from None
    narrator.doing("starting the supervisor")
    with running(Errand(ErrandKind.LAUNCH, record, settings)) as child:
        try:
            url = _until_ready(child, narrator, settings.supervisor.start_timeout + _SILENCE)
            record = msgspec.structs.replace(record, url=url)
            records.write(record)
            narrator.doing("loading the tokenizer")
            _until_answers(url, settings.api.tokenizer_timeout)
            if stay is Stay.HANDED_OVER:
                return record
            _show(record, settings, stay, narrator)
            if stay is Stay.DETACHED:
                return record
            _until_ended(child, record, narrator)
        except ErrandError as error:
            raise LaunchError(f"Ray at {record.address}: {error}") from None
        except Silence:
            raise LaunchError(f"Ray at {record.address} has not answered for {_SILENCE:g} s") from None
    take_down(record, _DRAIN, narrator)
    narrator.say("stopped")
    return record


def _until_ready(child: Child, narrator: Narrator, deadline: float) -> str:
    """Narrate until every replica is ready and the gateway listens. Where it listens."""
    until = time.monotonic() + deadline
    gateway_until: float | None = None
    while time.monotonic() < until:
        news = child.hear(_SILENCE)
        if news is None:
            raise LaunchError("the driver ended before the cluster was ready")
        if news.status is None:
            narrator.doing(news.trouble or "waiting for the supervisor")
            continue
        _raise_if_failed(news.status)
        if any(replica.phase is not ReplicaPhase.READY for replica in news.status.replicas):
            narrator.doing("; ".join(_sentence(replica) for replica in news.status.replicas))
            continue
        if news.status.gateway.url:
            return news.status.gateway.url
        why = news.status.gateway.error or "the gateway has not started"
        gateway_until = gateway_until or time.monotonic() + _GATEWAY_DEADLINE
        if time.monotonic() > gateway_until:
            raise LaunchError(why)
        narrator.doing(why)
    raise LaunchError(
        f"the cluster was not ready within {deadline:g} s; raise supervisor.start_timeout if it needs longer"
    )


def _until_answers(url: str, deadline: float) -> None:
    """Wait until the gateway says that it is ready: it loads the tokenizer when it is first asked."""
    until = time.monotonic() + deadline
    reachable = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    while True:
        try:
            with urllib.request.urlopen(f"{reachable}/ready", timeout=5):
                return
        except urllib.error.HTTPError as error:
            why = error.read().decode(errors="replace")
        except OSError as error:
            why = str(error)
        if time.monotonic() > until:
            raise LaunchError(
                f"the gateway was not ready within {deadline:g} s (api.tokenizer_timeout): {why}"
            )
        time.sleep(0.2)


def _until_ended(child: Child, record: ClusterRecord, narrator: Narrator) -> None:
    """Narrate what happens until Ctrl-C, or until somebody else takes the cluster down."""
    told = ""
    while True:
        try:
            news = child.hear(_SILENCE)
        except KeyboardInterrupt:
            return
        if news is None:
            if records.exists(record.id):
                raise LaunchError(f"the connection to Ray at {record.address} is lost")
            return
        if news.status is None:
            continue
        _raise_if_failed(news.status)
        sentence = "; ".join(_sentence(replica) for replica in news.status.replicas)
        if sentence != told and told:
            narrator.say(sentence)
        told = sentence


def _raise_if_failed(status: ClusterStatus) -> None:
    for replica in status.replicas:
        if replica.phase is ReplicaPhase.FAILED:
            # What ends the very first generation for good is what was asked for, not a mishap.
            raise LaunchError(replica.message, exit_code=2 if replica.generation == 1 else 1)


def _sentence(replica: ReplicaStatus) -> str:
    name = f"replica {replica.replica}"
    after = f", again after: {replica.message}" if replica.message else ""
    match replica.phase:
        case ReplicaPhase.WAITING:
            return f"{name} is about to start{after}"
        case ReplicaPhase.STARTING:
            return f"{'loading the model' if replica.ranks else 'starting the worker'} on {name}{after}"
        case ReplicaPhase.READY:
            return f"{name} serves (generation {replica.generation})"
        case ReplicaPhase.DYING | ReplicaPhase.FAILED:
            return f"{name} is down: {replica.message}"


def _show(record: ClusterRecord, settings: StrataSettings, stay: Stay, narrator: Narrator) -> None:
    """What a user needs to know of a cluster that runs."""
    narrator.say(f"serving {record.model} at {record.url}/v1 (cluster {record.id})")
    store = settings.store
    narrator.say(f"store {store.url} of {format_size(store.capacity)}" if store.url else "no store")
    if record.dashboard_url:
        token = f", token {record.token_file.read_text()}" if record.auth == "token" else ""
        narrator.say(f"Ray {record.address}, dashboard {record.dashboard_url}{token}")
    narrator.say(f"stop it with {'Ctrl-C or ' if stay is Stay.FOREGROUND else ''}`stratakv down {record.id}`")
