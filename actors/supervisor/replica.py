"""One replica's state machine: what it is doing, why, and when it may be tried again. Pure, with times passed in.

waiting -> starting -> ready
   ^          |          |
   +------- dying <------+        and from dying to failed, when another try would not help
"""

from dataclasses import dataclass, field
from enum import StrEnum

from stratakv.actors.supervisor.settings import SupervisorSettings
from stratakv.actors.supervisor.status import RankPhase, RankStatus, ReplicaPhase, ReplicaStatus, Report
from stratakv.cluster.messages import Endpoint


class Retry(StrEnum):
    """Whether the next generation may fare better."""

    LATER = "later"
    NEVER = "never"


@dataclass(slots=True)
class Replica:
    """Replica `number` of `ranks` ranks. Every method takes `now`, monotonic seconds, where time matters."""

    number: int
    ranks: int
    settings: SupervisorSettings
    generation: int = 0
    phase: ReplicaPhase = ReplicaPhase.WAITING
    message: str = ""
    """the last thing that went wrong"""
    served_once: bool = False
    adopted: bool = False
    """whether this generation was found by a restarted supervisor, and not started by it"""
    reports: dict[int, Report] = field(default_factory=dict)
    """the last report of each rank of this generation"""
    _retry: Retry = Retry.LATER
    _retry_at: float = 0.0
    _failures: int = 0
    """failures since it last served for `stable_after` seconds"""
    _ready_at: float | None = None

    def alive(self) -> bool:
        """Whether ranks of this generation are expected to run."""
        return self.phase in (ReplicaPhase.STARTING, ReplicaPhase.READY)

    def due(self, now: float) -> bool:
        """Whether the next generation should start."""
        return self.phase is ReplicaPhase.WAITING and now >= self._retry_at

    def begin(self, generation: int) -> None:
        """`generation` is being started, or taken over."""
        self.generation, self.phase, self._ready_at = generation, ReplicaPhase.STARTING, None
        self.reports, self.adopted = {}, False

    def heard(self, report: Report, now: float) -> None:
        """Note a rank's report; the replica is ready when all its ranks are."""
        self.reports[report.rank] = report
        ready = sum(known.phase is RankPhase.READY for known in self.reports.values())
        if self.phase is ReplicaPhase.STARTING and ready == self.ranks:
            self.phase, self._ready_at, self.served_once = ReplicaPhase.READY, now, True

    def fail(self, message: str, retry: Retry, now: float) -> None:
        """This generation must end; `message` says why. Too many such ends in a row are final."""
        if self._ready_at is not None and now - self._ready_at >= self.settings.stable_after:
            self._failures = 0
        self._failures += 1
        self.phase, self.message, self._retry = ReplicaPhase.DYING, message, retry
        limit = self.settings.rapid_failures if self.served_once else self.settings.first_failures
        if retry is Retry.LATER and self._failures >= limit:
            self._retry = Retry.NEVER
            self.message = f"{message}; given up after {self._failures} failures in a row"

    def buried(self, now: float) -> None:
        """All processes of this generation are gone."""
        if self._retry is Retry.NEVER:
            self.phase = ReplicaPhase.FAILED
            return
        self.phase, self._retry_at = ReplicaPhase.WAITING, now + self._backoff()

    def _backoff(self) -> float:
        """Seconds until the next try: none after the first failure, then doubling."""
        if self._failures <= 1:
            return 0.0
        return min(self.settings.backoff * 2.0 ** (self._failures - 2), self.settings.backoff_limit)

    def endpoint(self) -> Endpoint | None:
        """Where the head listens, while the replica is ready."""
        return self.reports[0].endpoint if self.phase is ReplicaPhase.READY else None

    def status(self) -> ReplicaStatus:
        """The replica as people see it."""
        return ReplicaStatus(
            replica=self.number,
            generation=self.generation,
            phase=self.phase,
            message=self.message,
            ranks=[_rank_status(report) for _, report in sorted(self.reports.items())],
        )


def _rank_status(report: Report) -> RankStatus:
    step = report.heartbeat.step if report.heartbeat else None
    return RankStatus(rank=report.rank, phase=report.phase, process=report.process, step=step)
