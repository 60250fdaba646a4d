"""Settings of the supervisor: how long a start may take and how often it is tried again."""

from pydantic import Field

from stratakv.actors.worker.config import DEFAULT_WORKER_CLASS
from stratakv.storage.settings import SettingsModel


class SupervisorSettings(SettingsModel):
    """How replicas are started and restarted (seconds)."""

    placement_timeout: float = Field(
        30.0, gt=0, description="seconds Ray may take to find room for a replica"
    )
    start_timeout: float = Field(600.0, gt=0, description="seconds a rank may take to load its model")
    kill_timeout: float = Field(
        3.0, gt=0, description="seconds a rank told to end has before it is killed by pid"
    )
    backoff: float = Field(
        1.0, ge=0, description="seconds before the second restart in a row; doubles each time"
    )
    backoff_limit: float = Field(30.0, ge=0, description="seconds between two restarts at most")
    rapid_failures: int = Field(5, ge=1, description="failures in a row after which a replica is given up")
    first_failures: int = Field(2, ge=1, description="failures after which one that never served is given up")
    stable_after: float = Field(
        60.0, ge=0, description="seconds of service after which failures are forgotten"
    )
    worker_class: str = Field(
        DEFAULT_WORKER_CLASS, description="`module:Class` that runs a rank (for benches)"
    )
