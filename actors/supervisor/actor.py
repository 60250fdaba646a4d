"""The Ray shell of the supervisor: carries out what `supervisor.py` decides, and finds all again when it restarts.

It persists nothing. Actors and placement groups are named after their generation, and every rank tells all about
itself each second, so what is there says what was.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup, get_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from stratakv.actors import shell
from stratakv.actors.gateway.actor import CONCURRENCY as GATEWAY_CONCURRENCY
from stratakv.actors.gateway.actor import Gateway
from stratakv.actors.router.actor import CONCURRENCY as ROUTER_CONCURRENCY
from stratakv.actors.router.actor import Router
from stratakv.actors.shell import GroupName, Keep, WorkerName
from stratakv.actors.supervisor.config import SupervisorConfig
from stratakv.actors.supervisor.generations import survey
from stratakv.actors.supervisor.status import ClusterStatus, GatewayStatus, ProcessId, ReplicaPhase, Report
from stratakv.actors.supervisor.supervisor import Order, OrderKind
from stratakv.actors.supervisor.supervisor import Supervisor as Decider
from stratakv.actors.worker.actor import CONCURRENCY as WORKER_CONCURRENCY
from stratakv.actors.worker.actor import GROUPS as WORKER_GROUPS
from stratakv.actors.worker.actor import Worker
from stratakv.cluster.messages import Endpoint

_log = logging.getLogger(__name__)

CONCURRENCY = 1000
_TICK = 0.1
_WATCH = 30.0


class NotPlaced(Exception):
    """Ray found no room for a generation; says what was asked for and what there is."""


class Supervisor:
    """Keeps the cluster as its config says. State lives on the event loop; calls that block run in threads."""

    def __init__(self, config: SupervisorConfig):
        self._config = config
        self._decider = Decider(
            config.replicas, config.tensor_parallel, config.settings, config.gateway.heartbeat, time.monotonic
        )
        self._processes: dict[WorkerName, ProcessId] = {}
        self._gateway: ActorHandle[Any] | None = None
        self._router: ActorHandle[Any] | None = None
        self._gateway_status = GatewayStatus()
        self._stopping = False
        self._adopted = False
        self._errands: set[asyncio.Task[None]] = set()
        self._send(self._run())

    def __repr__(self) -> str:
        return f"Supervisor({self._config.cluster_id})"

    @ray.method(enable_task_events=False)
    async def report(self, report: Report) -> None:
        """A rank says how it fares."""
        self._processes[WorkerName(report.replica, report.generation, report.rank)] = report.process
        self._decider.report(report)

    @ray.method(enable_task_events=False)
    async def endpoints(self) -> list[Endpoint] | None:
        """Where the heads of the ready replicas listen; None while a restarted supervisor does not know them all.

        An empty list would make gateways and router give up heads that are alive and well.
        """
        return self._decider.endpoints() if self._adopted and not self._decider.recalling() else None

    @ray.method(enable_task_events=False)
    async def status(self) -> ClusterStatus:
        """The cluster of now."""
        return ClusterStatus(replicas=self._decider.status(), gateway=self._gateway_status)

    async def idle_check(self) -> list[str]:
        """What is wrong with the ranks of an idle cluster: leaked slots, forgotten holds. Empty when all is well."""
        problems = [
            f"replica {replica.replica} is {replica.phase} and was not checked"
            for replica in self._decider.status()
            if replica.phase is not ReplicaPhase.READY
        ]
        for name in map(shell.parse_worker, await asyncio.to_thread(shell.living, self._config.namespace)):
            handle = await asyncio.to_thread(shell.find, self._config.namespace, str(name)) if name else None
            if handle is not None:
                found: list[str] = await asyncio.wait_for(handle.idle_check.remote(), 10.0)
                problems += [f"{name}: {problem}" for problem in found]
        return problems

    async def stop(self, deadline: float) -> None:
        """End the cluster: finish running answers for up to `deadline` seconds, then end every actor but this one."""
        self._stopping = True
        if self._gateway is not None:
            await _bounded(self._gateway.drain.remote(deadline), deadline + 2)
            ray.kill(self._gateway)
        if self._router is not None:
            ray.kill(self._router)
        names = await asyncio.to_thread(shell.living, self._config.namespace)
        workers = [name for name in map(shell.parse_worker, names) if name is not None]
        handles = [shell.find(self._config.namespace, str(name)) for name in workers]
        await asyncio.gather(*(_bounded(handle.stop.remote(), 5.0) for handle in handles if handle))
        for replica, generation in {(name.replica, name.generation) for name in workers}:
            await asyncio.to_thread(self._end, replica, generation)

    # -- the loop

    def _send(self, errand: Awaitable[None]) -> None:
        """Run `errand` beside the loop. One that fails takes the process with it, so that Ray starts a sound one."""

        async def guarded() -> None:
            try:
                await errand
            except Exception:
                _log.exception("the supervisor failed and ends; Ray will start it again")
                os._exit(1)

        task = asyncio.get_running_loop().create_task(guarded())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _run(self) -> None:
        await self._adopt()
        self._adopted = True
        keep = Keep(self._config.namespace, shell.GATEWAY, shell.FOREVER, GATEWAY_CONCURRENCY)
        self._gateway = shell.create(Gateway, keep, self._config.gateway)
        self._send(self._ask_gateway(self._gateway))
        keep = Keep(self._config.namespace, shell.ROUTER, shell.FOREVER, ROUTER_CONCURRENCY)
        self._router = shell.create(Router, keep, self._config.router)
        while not self._stopping:
            for order in self._decider.decide():
                self._send(self._carry_out(order))
            await asyncio.sleep(_TICK)

    async def _ask_gateway(self, gateway: ActorHandle[Any]) -> None:
        while not self._stopping:
            try:
                self._gateway_status = await asyncio.wait_for(gateway.status.remote(), 5.0)
            except (RayError, TimeoutError) as error:
                self._gateway_status = GatewayStatus(
                    error=f"the gateway does not answer ({type(error).__name__})"
                )
            await asyncio.sleep(0.5)

    async def _adopt(self) -> None:
        """Take over what an earlier life of this actor has started."""
        names = await asyncio.to_thread(shell.living, self._config.namespace)
        living = [
            (name.replica, name.generation) for name in map(shell.parse_worker, names) if name is not None
        ]
        groups = [shell.parse_group(name) for name in await asyncio.to_thread(self._groups)]
        remembered = [(group.replica, group.generation) for group in groups if group is not None]
        for found in survey(living, remembered, self._config.tensor_parallel):
            for generation in found.older:
                await asyncio.to_thread(self._end, found.replica, generation)
            if found.complete:
                self._decider.adopt(found.replica, found.generation)
                self._watch_all(found.replica, found.generation)
            else:
                self._decider.succeed(found.replica, found.generation)

    def _groups(self) -> list[str]:
        """Names of the cluster's placement groups, removed ones too. Groups have no namespace, so the id is in them."""
        prefix = f"{self._config.namespace}/"
        names = (str(group["name"]) for group in placement_group_table().values())
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    async def _carry_out(self, order: Order) -> None:
        if order.kind is OrderKind.KILL:
            await asyncio.to_thread(self._end, order.replica, order.generation)
            self._decider.buried(order.replica, order.generation)
            return
        try:
            await asyncio.to_thread(self._begin, order.replica, order.generation)
        except (NotPlaced, RayError) as error:
            self._decider.not_started(order.replica, order.generation, str(error))
        else:
            self._watch_all(order.replica, order.generation)

    def _watch_all(self, replica: int, generation: int) -> None:
        for rank in range(self._config.tensor_parallel):
            self._send(self._watch(WorkerName(replica, generation, rank)))

    async def _watch(self, name: WorkerName) -> None:
        """Until the rank dies: one long call is pending at it, which fails the moment its process does."""
        handle = await asyncio.to_thread(shell.find, self._config.namespace, str(name))
        while handle is not None:
            try:
                await handle.watch.remote(_WATCH)
            except ActorUnavailableError:
                await asyncio.sleep(_TICK)  # it may only be out of reach; the heartbeat judges that
            except RayActorError:
                break
        self._decider.died(name.replica, name.generation, name.rank)

    # -- blocking, in threads

    def _group_name(self, replica: int, generation: int) -> str:
        return f"{self._config.namespace}/{GroupName(replica, generation)}"

    def _begin(self, replica: int, generation: int) -> None:
        """Find room for all ranks of a generation together and create their actors. NotPlaced if there is no room."""
        config = self._config
        group = self._place(self._group_name(replica, generation))
        for rank in range(config.tensor_parallel):
            name = str(WorkerName(replica, generation, rank))
            shell.create(
                Worker,
                Keep(config.namespace, name, 0, WORKER_CONCURRENCY, WORKER_GROUPS),
                config.worker(replica, rank, generation),
                config.namespace,
                num_gpus=config.gpus,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=rank
                ),
            )

    def _place(self, name: str) -> PlacementGroup:
        # A bundle must ask for something, and a whole CPU each would not fit a small machine.
        bundle = {"GPU": float(self._config.gpus)} if self._config.gpus else {"CPU": 0.01}
        bundles = [bundle] * self._config.tensor_parallel
        group: PlacementGroup = placement_group(
            bundles, strategy="STRICT_PACK", name=name, lifetime="detached"
        )
        timeout = self._config.settings.placement_timeout
        if not group.wait(timeout):
            remove_placement_group(group)
            there: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
            free = {kind: amount for kind, amount in there.items() if kind in bundle}
            raise NotPlaced(
                f"Ray found no node with room for {len(bundles)} x {bundle} in {timeout:g} s (free in the whole "
                f"cluster: {free or 'none of it'}); free a node or lower --tensor-parallel"
            )
        return group

    def _end(self, replica: int, generation: int) -> None:
        """End all ranks of a generation, at need by pid, and give back their room."""
        names = [WorkerName(replica, generation, rank) for rank in range(self._config.tensor_parallel)]
        for name in names:  # all are told before any is waited for: together they are gone sooner
            handle = shell.find(self._config.namespace, str(name))
            if handle is not None:
                ray.kill(handle)
        for name in names:
            process = self._processes.pop(name, None)
            if process is not None and not shell.end_process(process, self._config.settings.kill_timeout):
                _log.error("%s (pid %d on node %s) could not be ended", name, process.pid, process.node)
        with contextlib.suppress(ValueError):  # it may be removed already
            remove_placement_group(get_placement_group(self._group_name(replica, generation)))


async def _bounded(call: Awaitable[None], seconds: float) -> None:
    """Wait for a call as long as `seconds`; whoever does not answer is ended the hard way later."""
    try:
        await asyncio.wait_for(call, seconds)
    except (RayError, GetTimeoutError, TimeoutError) as error:
        _log.warning("no answer within %g s: %s", seconds, error)
