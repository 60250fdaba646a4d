"""The Ray shell of the router: asks the supervisor every second where the heads are, and answers gateways.

Ray restarts it when it dies. It persists nothing: a new one asks every head for a snapshot.
"""

import asyncio
import logging
import os
from random import Random
from typing import Any

from ray.actor import ActorHandle
from ray.exceptions import RayError

from stratakv.actors import shell
from stratakv.actors.router.config import RouterConfig
from stratakv.actors.router.router import Router as Plain
from stratakv.actors.router.status import Death, RouterStatus
from stratakv.cluster.messages import Endpoint
from stratakv.cluster.routing.route import Actual, Route, RouteQuery

_log = logging.getLogger(__name__)

CONCURRENCY = 1000
"""Calls at once; none of them waits for anything."""
_ASK_DEADLINE = 5.0


class Router:
    """Chooses the replica of every request. All of it runs on the actor's event loop."""

    def __init__(self, config: RouterConfig):
        self._config = config
        self._router = Plain(config, Random())
        self._supervisor: ActorHandle[Any] | None = None
        self._following = asyncio.get_running_loop().create_task(self._follow())

    def __repr__(self) -> str:
        replicas = self._config.replicas
        return f"Router({replicas} replica{'s' if replicas != 1 else ''})"

    async def route(self, query: RouteQuery) -> Route:
        """See the plain router."""
        return self._router.route(query)

    async def report(self, actuals: list[Actual]) -> None:
        """See the plain router."""
        self._router.report(actuals)

    async def deaths(self) -> list[Death]:
        """See the plain router."""
        return self._router.deaths()

    async def status(self) -> RouterStatus:
        """See the plain router."""
        return self._router.status()

    async def _follow(self) -> None:
        """Keep the heads as the supervisor says; while it is away keep those there are. If anything fails the process
        ends, and Ray starts a whole router again."""
        try:
            while True:
                endpoints = await self._ask()
                if endpoints is not None:
                    await self._router.set_endpoints(endpoints)
                self._router.check()
                await asyncio.sleep(self._config.heartbeat.interval)
        except Exception:
            _log.exception("the router failed and ends; Ray will start it again")
            os._exit(1)

    async def _ask(self) -> list[Endpoint] | None:
        """Where the heads are; None when the supervisor does not say."""
        if self._supervisor is None:
            self._supervisor = await asyncio.to_thread(shell.find, self._config.namespace, shell.SUPERVISOR)
        if self._supervisor is None:
            return None
        try:
            endpoints: list[Endpoint] | None = await asyncio.wait_for(
                self._supervisor.endpoints.remote(), _ASK_DEADLINE
            )
        except (RayError, TimeoutError) as error:
            _log.warning("the supervisor did not answer (%s); keeping the heads known", type(error).__name__)
            return None
        return endpoints
