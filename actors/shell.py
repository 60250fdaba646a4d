"""What the actors' Ray shells share: names, handles, lifetimes, metrics, and the end of a process that will not end.

Every actor is detached, named and in the cluster's namespace, so none dies with whoever created it and a
restarted supervisor finds them all.
"""

import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.actor import ActorHandle
from ray.util import metrics
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stratakv.actors.supervisor.status import ProcessId
from stratakv.cluster.tally import Family

SUPERVISOR = "supervisor"
GATEWAY = "gateway"
ROUTER = "router"
FOREVER = -1
"""`max_restarts` of actors that Ray brings back by itself."""


class WorkerName(NamedTuple):
    """What the name of a worker actor says."""

    replica: int
    generation: int
    rank: int

    def __str__(self) -> str:
        return f"worker-r{self.replica}-g{self.generation}-k{self.rank}"


class GroupName(NamedTuple):
    """What the name of a replica's placement group says. It outlives the workers, and with it the generation."""

    replica: int
    generation: int

    def __str__(self) -> str:
        return f"replica-r{self.replica}-g{self.generation}"


def parse_worker(name: str) -> WorkerName | None:
    """The parts of a worker's name; None if `name` is not one."""
    found = re.fullmatch(r"worker-r(\d+)-g(\d+)-k(\d+)", name)
    return WorkerName(*map(int, found.groups())) if found else None


def parse_group(name: str) -> GroupName | None:
    """The parts of a placement group's name; None if `name` is not one."""
    found = re.fullmatch(r"replica-r(\d+)-g(\d+)", name)
    return GroupName(*map(int, found.groups())) if found else None


@dataclass(frozen=True, slots=True)
class Keep:
    """How an actor is kept: under which name, how often Ray brings it back, how many calls it takes at once.

    `groups` are concurrency groups: how many calls of the methods marked so are taken beside those.
    """

    namespace: str
    name: str
    max_restarts: int
    max_concurrency: int
    groups: Mapping[str, int] = field(default_factory=dict)


def create(actor: type, keep: Keep, *arguments: Any, **placement: Any) -> ActorHandle[Any]:
    """The actor of that name, created from the plain class `actor` unless it lives already.

    Detached and named; it asks for no CPU, or a small machine would have no room; no task is ever retried.
    `placement` are further Ray options, such as `num_gpus`.
    """
    marked: Any = ray.remote(concurrency_groups=dict(keep.groups))  # type: ignore[call-overload]
    remote = marked(actor)
    handle: ActorHandle[Any] = remote.options(
        namespace=keep.namespace,
        name=keep.name,
        max_restarts=keep.max_restarts,
        max_concurrency=keep.max_concurrency,
        **placement,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_task_retries=0,
    ).remote(*arguments)
    return handle


def find(namespace: str, name: str) -> ActorHandle[Any] | None:
    """The living actor of that name, or None."""
    try:
        handle: ActorHandle[Any] = ray.get_actor(name, namespace)
    except ValueError:
        return None
    return handle


def living(namespace: str) -> list[str]:
    """Names of all living actors of the cluster."""
    listed = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in listed if actor["namespace"] == namespace]


class RaySink:
    """A `Sink` that shows figures on Ray's metrics port, as `ray_stratakv_...`."""

    def __init__(self) -> None:
        self._counters: dict[Family, metrics.Counter] = {}
        self._gauges: dict[Family, metrics.Gauge] = {}

    def add(self, family: Family, labels: dict[str, str], amount: float) -> None:
        """See Sink. ValueError for an amount of 0 or less: Ray refuses it."""
        if family not in self._counters:
            self._counters[family] = metrics.Counter(f"stratakv_{family.name}", family.text, family.labels)
        self._counters[family].inc(amount, labels)

    def set(self, family: Family, labels: dict[str, str], value: float) -> None:
        """See Sink."""
        if family not in self._gauges:
            self._gauges[family] = metrics.Gauge(f"stratakv_{family.name}", family.text, family.labels)
        self._gauges[family].set(value, labels)


def this_process() -> ProcessId:
    """The process we are in."""
    pid = os.getpid()
    born = _born(pid)
    assert born is not None
    return ProcessId(node=ray.get_runtime_context().get_node_id(), pid=pid, born=born)


def end_process(process: ProcessId, deadline: float) -> bool:
    """Wait up to `deadline` seconds for `process` to end, then SIGKILL it. Whether it is gone afterwards.

    A process on another node is ended by a task that runs there; False if that node does not answer.
    """
    if process.node == ray.get_runtime_context().get_node_id():
        return _end_here(process.pid, process.born, deadline)
    there = NodeAffinitySchedulingStrategy(process.node, soft=False)
    task: Any = ray.remote(_end_here)
    task = task.options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    try:
        return bool(ray.get(task.remote(process.pid, process.born, deadline), timeout=deadline + 10))
    except ray.exceptions.RayError:
        return False


def _end_here(pid: int, born: int, deadline: float) -> bool:
    if _gone_within(pid, born, deadline):
        return True
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return True
    return _gone_within(pid, born, 5.0)


def _gone_within(pid: int, born: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while _born(pid) == born:
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True


def _born(pid: int) -> int | None:
    """Start time of a running process in clock ticks since boot; None if there is none or it is a zombie."""
    try:
        # The command name, in parentheses, may hold anything; fields are counted from behind it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])
