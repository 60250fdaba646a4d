"""The Ray shell of the gateway: an HTTP server that asks the supervisor every second where the heads are.

Ray restarts it when it dies, and its constructor is all it needs to serve again: nobody has to tell it anything.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable
from random import Random
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from stratakv.actors import shell
from stratakv.actors.gateway.backend import ClusterBackend
from stratakv.actors.gateway.choice import RemoteRouter
from stratakv.actors.gateway.config import GatewayConfig
from stratakv.actors.gateway.server import Listener
from stratakv.actors.gateway.track import Tracking
from stratakv.actors.metrics import Publisher
from stratakv.actors.shell import WorkerName
from stratakv.actors.supervisor.status import GatewayStatus
from stratakv.actors.worker.config import TRACKED_AT_ONCE
from stratakv.api.app import create_app
from stratakv.api.text import TextCodec
from stratakv.cluster.messages import Endpoint
from stratakv.cluster.metrics import Metrics
from stratakv.cluster.routing.route import Actual, Route, RouteQuery

_log = logging.getLogger(__name__)

CONCURRENCY = 100
_ASK_DEADLINE = 5.0
_BIND_AGAIN = 0.5
_PUBLISH_EVERY = 2.0


class Gateway:
    """One HTTP front door. All of it runs on the actor's event loop."""

    def __init__(self, config: GatewayConfig):
        self._config = config
        self._backend = ClusterBackend(
            config.keys,
            config.wire,
            config.heartbeat,
            replicas=config.replicas,
            router=RemoteRouter(_RouterCalls(config.namespace), config.router.deadline),
            tracker=Tracking(_TrackCalls(config.namespace), config.track_sample, TRACKED_AT_ONCE, Random()),
        )
        self._publisher = Publisher(self._backend.tally, shell.RaySink())
        self._supervisor: ActorHandle[Any] | None = None
        self._listener: Listener | None = None
        self._error: str | None = None
        loop = asyncio.get_running_loop()
        vital = (self._serve(), self._follow())
        self._tasks = [loop.create_task(_vital(work)) for work in vital]
        self._tasks.append(loop.create_task(self._publish()))

    def __repr__(self) -> str:
        return f"Gateway({self._config.api.host}:{self._config.api.port})"

    @ray.method(enable_task_events=False)  # asked every second: the dashboard is for requests
    async def status(self) -> GatewayStatus:
        """Where it listens, or why it does not."""
        return GatewayStatus(url=self._listener.url if self._listener else None, error=self._error)

    async def drain(self, deadline: float) -> None:
        """Not ready first, then no new connections; running answers have `deadline` seconds. Its end."""
        if self._listener:
            await self._listener.drain(deadline)
        for task in self._tasks:
            task.cancel()
        await self._backend.close()

    async def _serve(self) -> None:
        """Take the port, if need be again and again: after a restart the old process may hold it a moment longer."""
        app = create_app(self._backend, TextCodec(), self._config.api, Metrics(self._backend.tally))
        host, port = self._config.api.host, self._config.api.port
        while self._listener is None:
            try:
                self._listener = Listener(app, host, port)
                self._error = None
            except OSError as error:
                self._error = (
                    f"api.port: {host}:{port} cannot be had ({error.strerror}); choose another --port"
                )
                await asyncio.sleep(_BIND_AGAIN)
        await self._listener.wait()

    async def _follow(self) -> None:
        """Keep the backend's endpoints as the supervisor says; while it is away keep those there are."""
        while True:
            endpoints = await self._ask()
            if endpoints is not None:
                await self._backend.set_endpoints(endpoints)
            await asyncio.sleep(self._config.heartbeat.interval)

    async def _publish(self) -> None:
        """Keep Ray's metrics up to date. They are for people: if that fails the answers go on."""
        while True:
            self._backend.refresh()
            try:
                self._publisher.publish()
            except Exception:
                _log.exception("the metrics could not be handed to Ray; trying again")
            await asyncio.sleep(_PUBLISH_EVERY)

    async def _ask(self) -> list[Endpoint] | None:
        if self._supervisor is None:
            self._supervisor = await asyncio.to_thread(shell.find, self._config.namespace, shell.SUPERVISOR)
        if self._supervisor is None:
            return None
        try:
            endpoints: list[Endpoint] | None = await asyncio.wait_for(
                self._supervisor.endpoints.remote(), _ASK_DEADLINE
            )
        except (RayError, TimeoutError) as error:
            _log.warning(
                "the supervisor did not answer (%s); keeping the endpoints known", type(error).__name__
            )
            return None
        return endpoints


class _RouterCalls:
    """The router actor, found by its name when it is first needed."""

    def __init__(self, namespace: str):
        self._namespace = namespace
        self._found: ActorHandle[Any] | None = None

    async def route(self, query: RouteQuery) -> Route:
        """See RouterCalls."""
        route: Route = await (await self._handle()).route.remote(query)
        return route

    async def report(self, actuals: list[Actual]) -> None:
        """See RouterCalls."""
        await (await self._handle()).report.remote(actuals)

    async def _handle(self) -> ActorHandle[Any]:
        if self._found is None:
            self._found = await asyncio.to_thread(shell.find, self._namespace, shell.ROUTER)
        if self._found is None:
            raise RuntimeError("there is no router yet")
        return self._found


class _TrackCalls:
    """The actors of rank 0, found by their names when they are first needed."""

    def __init__(self, namespace: str):
        self._namespace = namespace
        self._found: dict[int, tuple[WorkerName, ActorHandle[Any]]] = {}
        self._searches: set[asyncio.Task[None]] = set()

    def track(self, endpoint: Endpoint, id: str, name: str) -> None:
        """See TrackCalls. A worker that is not known yet is looked up first, in a thread."""
        worker = WorkerName(endpoint.replica, endpoint.generation, 0)
        known, handle = self._found.get(endpoint.replica, (None, None))
        if handle is not None and known == worker:
            _send_track(handle, id, name)
            return
        search = asyncio.create_task(self._search(worker, id, name))
        self._searches.add(search)
        search.add_done_callback(self._searches.discard)

    async def _search(self, worker: WorkerName, id: str, name: str) -> None:
        try:
            handle = await asyncio.to_thread(shell.find, self._namespace, str(worker))
        except Exception as error:
            _log.warning("no task for the dashboard: %s was not found (%s)", worker, error)
            return
        if handle is not None:
            self._found[worker.replica] = worker, handle
            _send_track(handle, id, name)


def _send_track(handle: ActorHandle[Any], id: str, name: str) -> None:
    """Start the task, without a result to wait for. Of whatever kind its failure is, it changes nothing."""
    try:
        handle.track.options(name=name, num_returns=0).remote(id)
    except Exception as error:
        _log.warning("no task for the dashboard: %s", error)


async def _vital(work: Awaitable[None]) -> None:
    """Work without which the gateway is none: if it fails the process ends, and Ray starts a whole gateway again."""
    try:
        await work
    except Exception:
        _log.exception("the gateway failed and ends; Ray will start it again")
        os._exit(1)
