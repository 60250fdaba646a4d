"""The Ray side of the command: a child process that connects, does one errand and says how it goes.

Ray lives only in here. A driver that hangs, because the cluster it talks to is stopped or gone, can so be given a
deadline and be killed by its parent (`errand.py`), and none of Ray's signal handlers or exits touch the command.
Input is one pickled Errand on stdin, from our own parent; output one JSON `News` per line.
"""

import logging
import pickle
import sys
import time
from typing import Any

import msgspec
import ray
from ray.actor import ActorHandle

from stratakv.actors import shell
from stratakv.actors.gateway.config import GatewayConfig
from stratakv.actors.router.config import RouterConfig
from stratakv.actors.router.status import RouterStatus
from stratakv.actors.supervisor.actor import CONCURRENCY, Supervisor
from stratakv.actors.supervisor.config import SupervisorConfig
from stratakv.cluster.curve import new_key_pair
from stratakv.deploy.errand import Errand, ErrandKind, News
from stratakv.deploy.processes import MARK
from stratakv.deploy.records import ClusterRecord, RayOwner
from stratakv.deploy.settings import StrataSettings

_ANSWER_DEADLINE = 10.0
_PERIOD = 0.5
_WATCH_PERIOD = 0.2


def main() -> None:
    """Do the errand that stdin holds."""
    errand: Errand = pickle.load(sys.stdin.buffer)
    try:
        _connect(errand.record)
        match errand.kind:
            case ErrandKind.LAUNCH:
                assert errand.settings is not None
                _tell_for_ever(_create(errand.record, errand.settings))
            case ErrandKind.STATUS:
                _tell(_status(_supervisor(errand.record)))
            case ErrandKind.WATCH:
                _watch(errand.record)
            case ErrandKind.CHECK:
                found: list[str] = ray.get(_supervisor(errand.record).idle_check.remote(), timeout=30)
                _tell(News(problems=found))
            case ErrandKind.STOP:
                _stop(errand.record, errand.deadline)
                _tell(News())
    except BrokenPipeError:
        return
    except Exception as error:
        _tell(News(error=f"{type(error).__name__}: {error}"))


def _connect(record: ClusterRecord) -> None:
    # Processes of our own Ray inherit the mark from it; on another's Ray it must travel with the job.
    ours = record.ray is RayOwner.OURS
    ray.init(
        record.address,
        namespace=record.namespace,
        runtime_env=None if ours else {"env_vars": {MARK: record.id}},
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def _create(record: ClusterRecord, settings: StrataSettings) -> ActorHandle[Any]:
    keep = shell.Keep(record.namespace, shell.SUPERVISOR, shell.FOREVER, CONCURRENCY)
    return shell.create(Supervisor, keep, _config(record, settings))


def _config(record: ClusterRecord, settings: StrataSettings) -> SupervisorConfig:
    keys = new_key_pair()
    gateway = GatewayConfig(
        namespace=record.namespace,
        api=settings.api,
        wire=settings.wire,
        heartbeat=settings.heartbeat,
        router=settings.router,
        keys=keys,
        replicas=settings.replicas,
        track_sample=settings.ray.track,
    )
    router = RouterConfig(
        namespace=record.namespace,
        settings=settings.router,
        wire=settings.wire,
        heartbeat=settings.heartbeat,
        keys=keys,
        replicas=settings.replicas,
    )
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    has_gpus = resources.get("GPU", 0) >= 1
    return SupervisorConfig(
        cluster_id=record.id,
        namespace=record.namespace,
        replicas=settings.replicas,
        tensor_parallel=settings.tensor_parallel,
        gpus=int(settings.model.device == "cuda" or (settings.model.device == "auto" and has_gpus)),
        model=settings.model,
        cache=settings.cache,
        scheduler=settings.scheduler,
        store=settings.store,
        settings=settings.supervisor,
        gateway=gateway,
        router=router,
    )


def _supervisor(record: ClusterRecord) -> ActorHandle[Any]:
    handle: ActorHandle[Any] = ray.get_actor(shell.SUPERVISOR, record.namespace)
    return handle


def _status(supervisor: ActorHandle[Any]) -> News:
    try:
        answer: Any = ray.get(supervisor.status.remote(), timeout=_ANSWER_DEADLINE)
    except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError) as error:
        return News(trouble=f"the supervisor does not answer ({type(error).__name__})")
    return News(status=answer)


def _tell_for_ever(supervisor: ActorHandle[Any]) -> None:
    """Say how the cluster is until nobody listens any more."""
    while True:
        _tell(_status(supervisor))
        time.sleep(_PERIOD)


def _watch(record: ClusterRecord) -> None:
    """Say how the cluster and its router are until nobody listens any more."""
    supervisor = _supervisor(record)
    router: ActorHandle[Any] = ray.get_actor(shell.ROUTER, record.namespace)
    while True:
        _tell(msgspec.structs.replace(_status(supervisor), router=_router_status(router)))
        time.sleep(_WATCH_PERIOD)


def _router_status(router: ActorHandle[Any]) -> RouterStatus | None:
    try:
        answer: Any = ray.get(router.status.remote(), timeout=_ANSWER_DEADLINE)
    except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
        return None
    found: RouterStatus = answer
    return found


def _stop(record: ClusterRecord, deadline: float) -> None:
    """End all actors of the cluster, the supervisor last."""
    supervisor = shell.find(record.namespace, shell.SUPERVISOR)
    if supervisor is not None:
        ray.get(supervisor.stop.remote(deadline), timeout=deadline + 30)
        ray.kill(supervisor)
    for name in shell.living(record.namespace):  # whatever the supervisor did not get to
        handle = shell.find(record.namespace, name)
        if handle is not None:
            ray.kill(handle)


def _tell(news: News) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(news) + b"\n")
    sys.stdout.buffer.flush()
