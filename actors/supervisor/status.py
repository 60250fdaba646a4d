"""What ranks tell the supervisor, and what it tells gateways and operators. All of it travels through Ray."""

from enum import StrEnum

import msgspec

from stratakv.actors.worker.config import Heartbeat
from stratakv.cluster.messages import Endpoint


class RankPhase(StrEnum):
    """Where a rank is in its life, as it says itself."""

    LOADING = "loading"
    READY = "ready"
    MISHAP = "mishap"
    """Its start failed in a way that another try may heal."""
    HOPELESS = "hopeless"
    """Its start failed and would fail again: settings or model are wrong."""


class ProcessId(msgspec.Struct, frozen=True):
    """A process, told apart from any later one with the same pid."""

    node: str
    """Ray's node id, hex."""
    pid: int
    born: int
    """Start time in clock ticks since boot, field 22 of /proc/PID/stat."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's report of each second. Complete in itself, so a restarted supervisor soon knows all."""

    replica: int
    rank: int
    generation: int
    process: ProcessId
    phase: RankPhase
    message: str = ""
    endpoint: Endpoint | None = None
    heartbeat: Heartbeat | None = None


class ReplicaPhase(StrEnum):
    """Where a replica is in its life."""

    WAITING = "waiting"
    """The next generation starts when its backoff is over."""
    STARTING = "starting"
    READY = "ready"
    DYING = "dying"
    """Its ranks are being ended."""
    FAILED = "failed"
    """Given up; `message` says why. Only a new start of the cluster heals it."""


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A rank as `stratakv status` shows it."""

    rank: int
    phase: RankPhase
    process: ProcessId
    step: int | None


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as `stratakv status` shows it. `message` is the last thing that went wrong, empty if nothing did."""

    replica: int
    generation: int
    phase: ReplicaPhase
    message: str
    ranks: list[RankStatus]


class GatewayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway: `url` once it listens, `error` while it cannot."""

    url: str | None = None
    error: str | None = None


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster at one moment."""

    replicas: list[ReplicaStatus]
    gateway: GatewayStatus
