"""Keeps the replicas alive: takes reports and deaths, judges silence, and orders starts and ends. No Ray in here.

Its shell in `actor.py` feeds it and carries out what `decide` returns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from stratakv.actors.supervisor.replica import Replica, Retry
from stratakv.actors.supervisor.settings import SupervisorSettings
from stratakv.actors.supervisor.status import RankPhase, ReplicaPhase, ReplicaStatus, Report
from stratakv.cluster.heartbeat import HeartbeatMonitor
from stratakv.cluster.messages import Endpoint
from stratakv.cluster.settings import HeartbeatSettings


class OrderKind(StrEnum):
    """What the shell is told to do with one generation of one replica."""

    START = "start"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Order:
    """Start or end all ranks of `generation` of `replica`."""

    kind: OrderKind
    replica: int
    generation: int


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """A rank has failed, and `message` says why unless another turns out to be gone before `until`."""

    message: str
    until: float


class Supervisor:
    """Keeps `replicas` replicas of `ranks` ranks alive. Not thread-safe: its shell calls it from one event loop.

    `clock` gives monotonic seconds.
    """

    def __init__(
        self,
        replicas: int,
        ranks: int,
        settings: SupervisorSettings,
        heartbeat: HeartbeatSettings,
        clock: Callable[[], float],
    ):
        self._clock = clock
        self._patience = heartbeat.timeout
        self._monitor = HeartbeatMonitor(heartbeat, settings.start_timeout, clock)
        self._replicas = [Replica(number, ranks, settings) for number in range(replicas)]
        self._kills: list[Order] = []
        self._suspicions: dict[int, _Suspicion] = {}

    def adopt(self, replica: int, generation: int) -> None:
        """After a restart: take over `generation`, all of whose ranks were found. They speak by their next report."""
        found = self._replicas[replica]
        found.served_once = True
        self._begin(found, generation)
        found.adopted = True

    def succeed(self, replica: int, generation: int) -> None:
        """After a restart: `generation` has ranks that are gone. End what is left of it; then comes the next."""
        found = self._replicas[replica]
        found.served_once, found.generation = True, generation
        self._fail(found, f"generation {generation} was gone when the supervisor came back", Retry.LATER)

    def report(self, report: Report) -> None:
        """Take a rank's report. One of a generation that is not the living one is ignored."""
        replica = self._living(report.replica, report.generation)
        if replica is None:
            return
        if report.phase is RankPhase.HOPELESS:
            self._fail(replica, report.message, Retry.NEVER)
            return
        if report.phase is RankPhase.MISHAP:
            self._suspect(replica, report)
            return
        replica.heard(report, self._clock())
        if report.heartbeat is not None:
            beat = report.heartbeat
            self._monitor.beat(report.replica, report.rank, report.generation, beat.step, beat.step_age)

    def died(self, replica: int, generation: int, rank: int) -> None:
        """The process of a rank is gone."""
        known = self._living(replica, generation)
        if known is not None:
            self._fail(known, f"rank {rank} of replica {replica} (generation {generation}) died", Retry.LATER)

    def not_started(self, replica: int, generation: int, reason: str) -> None:
        """Ray could not start a generation. Hopeless if the replica has never served, else tried again."""
        known = self._living(replica, generation)
        if known is not None:
            self._fail(known, reason, Retry.LATER if known.served_once else Retry.NEVER)

    def buried(self, replica: int, generation: int) -> None:
        """All processes of a generation are gone, so the next may start when its time has come."""
        known = self._replicas[replica]
        if known.generation == generation and known.phase is ReplicaPhase.DYING:
            known.buried(self._clock())

    def decide(self) -> list[Order]:
        """What must be done now, each order once."""
        now = self._clock()
        for verdict in self._monitor.overdue(now):
            replica = self._living(verdict.replica, verdict.generation)
            if replica is not None:
                self._fail(replica, str(verdict), Retry.LATER)
        for number, suspicion in list(self._suspicions.items()):
            if now >= suspicion.until:
                self._fail(self._replicas[number], suspicion.message, Retry.LATER)
        orders, self._kills = self._kills, []
        for replica in self._replicas:
            if replica.due(now):
                self._begin(replica, replica.generation + 1)
                orders.append(Order(OrderKind.START, replica.number, replica.generation))
        return orders

    def endpoints(self) -> list[Endpoint]:
        """Where the heads of the ready replicas listen."""
        return [endpoint for replica in self._replicas if (endpoint := replica.endpoint()) is not None]

    def recalling(self) -> bool:
        """Whether a replica that was taken over from an earlier life of the supervisor has not spoken yet."""
        return any(replica.adopted and not replica.reports and replica.alive() for replica in self._replicas)

    def status(self) -> list[ReplicaStatus]:
        """Every replica, for people."""
        return [replica.status() for replica in self._replicas]

    def _living(self, replica: int, generation: int) -> Replica | None:
        known = self._replicas[replica]
        return known if known.generation == generation and known.alive() else None

    def _begin(self, replica: Replica, generation: int) -> None:
        replica.begin(generation)
        for rank in range(replica.ranks):
            self._monitor.expect(replica.number, rank, generation)

    def _suspect(self, replica: Replica, report: Report) -> None:
        """A rank has failed. One of several has often failed because another is gone: if one is, it dies, falls silent
        or says so soon, and is to be named. Until then it is this one, which is not silent."""
        if replica.ranks == 1:
            self._fail(replica, report.message, Retry.LATER)
            return
        self._monitor.beat(report.replica, report.rank, report.generation, 0, None)
        if replica.number not in self._suspicions:
            self._suspicions[replica.number] = _Suspicion(report.message, self._clock() + self._patience)

    def _fail(self, replica: Replica, message: str, retry: Retry) -> None:
        self._suspicions.pop(replica.number, None)
        self._monitor.forget(replica.number, replica.generation)
        replica.fail(message, retry, self._clock())
        self._kills.append(Order(OrderKind.KILL, replica.number, replica.generation))
