"""What the demo sees of the cluster from behind: who served a request, who died, whether all is written down."""

import os
import signal
import time
from collections.abc import Callable

from stratakv.actors.supervisor.status import ReplicaPhase, ReplicaStatus
from stratakv.cluster.routing.route import Receipt
from stratakv.deploy import processes
from stratakv.deploy.errand import Child, Errand, ErrandError, ErrandKind, News, Silence, ask
from stratakv.deploy.records import ClusterRecord

_DEADLINE = 60.0
_SILENCE = 30.0
_CHECK_DEADLINE = 60.0


class WatchError(Exception):
    """The cluster did not do in time what the demo waited for."""


class Watch:
    """Follows a cluster through `child`, an errand of the kind WATCH. Every wait has a deadline: then WatchError."""

    def __init__(self, record: ClusterRecord, child: Child):
        self._record = record
        self._child = child
        self._settled: set[int] = set()

    def ready(self) -> None:
        """Wait until the router follows every replica exactly."""
        self._until(
            lambda news: (
                news.router is not None
                and news.status is not None
                and len(news.router.replicas) == len(news.status.replicas)
                and all(replica.exact for replica in news.router.replicas)
            ),
            "the router knows all replicas",
        )

    def served(self, count: int) -> list[Receipt]:
        """The receipts of the latest `count` requests, all of them answered and none of them asked for before."""
        found: dict[int, Receipt] = {}

        def all_told(news: News) -> bool:
            for receipt in news.router.latest if news.router else ():
                if receipt.actual is not None and receipt.route.receipt not in self._settled:
                    found[receipt.route.receipt] = receipt
            return len(found) >= count

        self._until(all_told, "the router is told what became of a request")
        self._settled.update(found)
        return list(found.values())

    def written(self) -> None:
        """Wait until no page is on its way to the store, on any rank."""
        until = time.monotonic() + _DEADLINE
        while True:
            try:
                problems = ask(Errand(ErrandKind.CHECK, self._record), _CHECK_DEADLINE).problems
            except ErrandError as error:
                raise WatchError(f"the replicas do not say whether they are idle: {error}") from None
            if not problems:
                return
            if time.monotonic() > until:
                raise WatchError(f"not all is in the store after {_DEADLINE:g} s: {'; '.join(problems)}")

    def kill(self, replica: int) -> int:
        """SIGKILL the worker of `replica` and wait until the router lists its death. The pid it had."""
        known = self._replica(replica)
        pid = known.ranks[0].process.pid
        if pid not in processes.of_cluster(self._record):
            raise WatchError(f"the worker of replica {replica} (pid {pid}) does not run on this machine")
        os.kill(pid, signal.SIGKILL)
        death = (replica, known.generation)
        self._until(
            lambda news: (
                news.router is not None
                and death in ((dead.replica, dead.generation) for dead in news.router.deaths)
            ),
            f"the router lists the death of replica {replica}",
        )
        return pid

    def _replica(self, number: int) -> ReplicaStatus:
        news = self._until(lambda news: news.status is not None, "the supervisor answers")
        assert news.status is not None
        found = news.status.replicas[number]
        if found.phase is not ReplicaPhase.READY or not found.ranks:
            raise WatchError(f"replica {number} is not ready: {found.message or found.phase}")
        return found

    def _until(self, condition: Callable[[News], bool], what: str) -> News:
        """The first news for which `condition` holds."""
        until = time.monotonic() + _DEADLINE
        while time.monotonic() < until:
            try:
                news = self._child.hear(_SILENCE)
            except Silence:
                raise WatchError(f"no news of the cluster for {_SILENCE:g} s, waiting until {what}") from None
            except ErrandError as error:
                raise WatchError(f"the cluster cannot be watched any longer: {error}") from None
            if news is None:
                raise WatchError(f"the connection to the cluster is lost, waiting until {what}")
            if condition(news):
                return news
        raise WatchError(f"waited {_DEADLINE:g} s in vain until {what}")
