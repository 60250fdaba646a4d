"""Who is alive: each rank reports every second, and whoever is silent or stuck is named, so it can be
replaced.

Pure logic with an injected clock. The supervisor feeds it and acts on its verdicts; a collective that hangs
cannot name who is missing, this can.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from stratakv.cluster.settings import HeartbeatSettings


class Cause(StrEnum):
    """What a rank is accused of."""

    NEVER_STARTED = "never started"
    SILENT = "silent"
    STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rank that must be replaced, with all ranks of its generation. `str()` of it is a sentence."""

    replica: int
    rank: int
    generation: int
    cause: Cause
    seconds: float
    """How long it has been silent, or has been in its step."""
    limit: float
    """The limit that was passed, in seconds."""
    step: int | None
    """The last step it reported, None before its first report."""

    def __str__(self) -> str:
        who = f"rank {self.rank} of replica {self.replica} (generation {self.generation})"
        match self.cause:
            case Cause.NEVER_STARTED:
                return (
                    f"{who} has not reported once in {self.seconds:.1f} s since it was started "
                    f"(start deadline {self.limit:g} s)"
                )
            case Cause.SILENT:
                return (
                    f"{who} has been silent for {self.seconds:.1f} s (heartbeat.timeout is {self.limit:g} s)"
                )
            case Cause.STUCK:
                return (
                    f"{who} has been in step {self.step} for {self.seconds:.1f} s "
                    f"(heartbeat.step_timeout is {self.limit:g} s)"
                )


@dataclass(slots=True)
class _Rank:
    """What is known of an expected rank. Times are the monitor's clock."""

    generation: int
    expected_at: float
    heard_at: float | None = None
    step: int | None = None
    step_age: float | None = None


class HeartbeatMonitor:
    """Judges the ranks it was told to expect by the beats they send. Not thread-safe: one owner calls it.

    `clock` gives monotonic seconds; `start_deadline` is how long a rank may take to its first beat (it loads
    a model).
    """

    def __init__(self, settings: HeartbeatSettings, start_deadline: float, clock: Callable[[], float]):
        self._settings = settings
        self._start_deadline = start_deadline
        self._clock = clock
        self._ranks: dict[tuple[int, int], _Rank] = {}

    def expect(self, replica: int, rank: int, generation: int) -> None:
        """Watch this rank from now on, in place of its older generations. A generation that is known is left
        as it is.
        """
        known = self._ranks.get((replica, rank))
        if known is None or known.generation < generation:
            self._ranks[replica, rank] = _Rank(generation, self._clock())

    def beat(self, replica: int, rank: int, generation: int, step: int, step_age: float | None) -> None:
        """A report of a rank. Reports of ranks or generations that are not expected are ignored.

        `step` is its latest step; `step_age` the seconds it has been working on it, 0 while idle, None until
        the first step of all has run (which is never judged: it warms up).
        """
        known = self._ranks.get((replica, rank))
        if known is None or known.generation != generation:
            return
        known.heard_at, known.step, known.step_age = self._clock(), step, step_age

    def forget(self, replica: int, generation: int) -> None:
        """Stop watching all ranks of `replica` that are of `generation` or older: they are being ended."""
        for key, known in list(self._ranks.items()):
            if key[0] == replica and known.generation <= generation:
                del self._ranks[key]

    def overdue(self, now: float) -> list[Verdict]:
        """Every rank that must be replaced, in order; `now` is the clock's time. Changes nothing."""
        verdicts = (
            self._judge(replica, rank, known, now) for (replica, rank), known in sorted(self._ranks.items())
        )
        return [verdict for verdict in verdicts if verdict is not None]

    def _judge(self, replica: int, rank: int, known: _Rank, now: float) -> Verdict | None:
        if known.heard_at is None:
            cause, seconds, limit = Cause.NEVER_STARTED, now - known.expected_at, self._start_deadline
        elif now - known.heard_at > self._settings.timeout:
            cause, seconds, limit = Cause.SILENT, now - known.heard_at, self._settings.timeout
        elif known.step_age is not None:
            cause, seconds, limit = Cause.STUCK, known.step_age, self._settings.step_timeout
        else:
            return None
        if seconds <= limit:
            return None
        return Verdict(replica, rank, known.generation, cause, seconds, limit, known.step)
