"""The Ray shell of one rank: loads the class that does the work, starts it, and says every second how it fares.

The shell lives exactly one generation. It never restarts by itself: the supervisor ends all ranks of a generation
and starts the next.
"""

import importlib
import logging
import os
import threading
import time
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError

from stratakv.actors import shell
from stratakv.actors.shell import WorkerName
from stratakv.actors.supervisor.status import RankPhase, Report
from stratakv.actors.worker.config import TRACKED_AT_ONCE, RankWorker, StartError, WorkerConfig
from stratakv.cluster.messages import Endpoint
from stratakv.cluster.rendezvous import Rendezvous

_log = logging.getLogger(__name__)

CONCURRENCY = 8
"""calls at once: watch of the supervisor (and of the one before it), drain, stop, checks"""
GROUPS = {"track": TRACKED_AT_ONCE}
"""concurrency groups: what is tracked for the dashboard never takes the place of the calls above"""
_TRACK_DEADLINE = 3600.0
_ASK_DEADLINE = 5.0
_ASK_INTERVAL = 0.1
_LINGER = 30.0
"""Seconds after a failure by which the supervisor should have ended this process; then it ends itself."""


class Worker:
    """One rank of one generation. Its constructor returns at once; loading goes on in a thread."""

    def __init__(self, config: WorkerConfig, namespace: str):
        self._config = config
        self._namespace = namespace
        self._process = shell.this_process()
        self._ended = threading.Event()
        self._phase = RankPhase.LOADING
        self._message = ""
        self._endpoint: Endpoint | None = None
        self._rendezvous: Rendezvous | None = None
        self._failed_at: float | None = None
        self._worker: RankWorker | None = None
        self._supervisor: ActorHandle[Any] | None = None
        threading.Thread(target=self._start, name="start", daemon=True).start()
        threading.Thread(target=self._report_for_ever, name="report", daemon=True).start()

    def __repr__(self) -> str:
        config = self._config
        return f"Worker(r{config.replica}, rank {config.rank}, gen {config.generation})"

    @ray.method(enable_task_events=False)
    def watch(self, seconds: float) -> None:
        """Return after `seconds`, or when the rank has been stopped. The call fails at once when the process dies."""
        self._ended.wait(seconds)

    @ray.method(enable_task_events=False)
    def rendezvous(self) -> Rendezvous | None:
        """Rank 0: how the others of this generation find it; None while it has not said."""
        return self._rendezvous

    def idle_check(self) -> list[str]:
        """See RankWorker.idle_check. Empty while the rank is not ready."""
        return self._worker.idle_check() if self._worker and self._phase is RankPhase.READY else []

    @ray.method(concurrency_group="track")
    def track(self, id: str) -> None:
        """Show a request on the dashboard: the call ends with it, or at once if it is not live here."""
        if self._worker and self._phase is RankPhase.READY:
            self._worker.wait_for(id, _TRACK_DEADLINE)

    def drain(self, deadline: float) -> None:
        """See RankWorker.drain."""
        if self._worker and self._phase is RankPhase.READY:
            self._worker.drain(deadline)

    def stop(self) -> None:
        """End the rank; afterwards only the process is left."""
        self._ended.set()
        if self._worker:
            self._worker.stop()

    def _start(self) -> None:
        try:
            self._worker = _load(self._config)
            self._endpoint = self._worker.start(self)
            self._phase = RankPhase.READY
        except StartError as error:
            self._fail(RankPhase.HOPELESS, str(error))
        except Exception as error:
            _log.exception("rank %d of replica %d could not start", self._config.rank, self._config.replica)
            self._fail(RankPhase.MISHAP, f"{self!r} could not start: {type(error).__name__}: {error}")
        self._report()

    def publish(self, rendezvous: Rendezvous) -> None:
        """See Meeting. Called by the worker itself, not through Ray."""
        self._rendezvous = rendezvous

    def wait(self, deadline: float) -> Rendezvous:
        """See Meeting: asks the actor of rank 0 again and again. Called by the worker itself, not through Ray."""
        name = str(WorkerName(self._config.replica, self._config.generation, 0))
        until = time.monotonic() + deadline
        while time.monotonic() < until:
            head: Any = shell.find(self._namespace, name)
            if head is not None:
                try:
                    found: Rendezvous | None = ray.get(head.rendezvous.remote(), timeout=_ASK_DEADLINE)
                except GetTimeoutError:
                    continue
                except RayActorError as error:
                    raise TimeoutError(f"{name} (rank 0) died while {self!r} waited for it") from error
                if found is not None:
                    return found
            time.sleep(_ASK_INTERVAL)
        raise TimeoutError(
            f"{name} (rank 0) did not say within {deadline:g} s where it is to be met (supervisor.start_timeout)"
        )

    def _fail(self, phase: RankPhase, message: str) -> None:
        self._message, self._phase = message, phase
        self._failed_at = self._failed_at or time.monotonic()

    def _report_for_ever(self) -> None:
        while not self._ended.wait(self._config.heartbeat.interval):
            self._report()
            if self._failed_at is not None and time.monotonic() - self._failed_at > _LINGER:
                _log.error("nobody has ended %r, which failed; it ends itself", self)
                os._exit(1)

    def _report(self) -> None:
        """Tell the supervisor how this rank fares. Not waited for: one that is away hears the next report."""
        if self._supervisor is None:
            self._supervisor = shell.find(self._namespace, shell.SUPERVISOR)
        if self._supervisor is not None:
            self._supervisor.report.remote(self._status())

    def _status(self) -> Report:
        heartbeat = None
        if self._worker and self._phase is RankPhase.READY:
            try:
                heartbeat = self._worker.heartbeat()
            except Exception as error:
                _log.exception("the engine of %r failed", self)
                self._fail(
                    RankPhase.MISHAP, f"the engine of {self!r} failed: {type(error).__name__}: {error}"
                )
        return Report(
            replica=self._config.replica,
            rank=self._config.rank,
            generation=self._config.generation,
            process=self._process,
            phase=self._phase,
            message=self._message,
            endpoint=self._endpoint,
            heartbeat=heartbeat,
        )


def _load(config: WorkerConfig) -> RankWorker:
    """An instance of the class that `config.worker_class` names. StartError if there is none."""
    module, _, name = config.worker_class.partition(":")
    try:
        made: RankWorker = vars(importlib.import_module(module))[name](config)
    except (ImportError, KeyError, ValueError) as error:
        raise StartError(
            f"supervisor.worker_class: {config.worker_class!r} cannot be loaded ({error}); write it as module:Class"
        ) from error
    return made
