"""What a rank is started with, and what its shell expects of the class that does the work.

The supervisor makes a `WorkerConfig` per rank and generation; the Ray shell in `actor.py` loads `worker_class` and
drives it through the `RankWorker` protocol. So a worker without a model can stand in for benches and tests.
"""

from typing import Protocol

import msgspec

from stratakv.actors.settings import ModelSettings, SchedulerSettings
from stratakv.cluster.messages import Endpoint
from stratakv.cluster.rendezvous import Meeting
from stratakv.cluster.settings import HeartbeatSettings, WireSettings
from stratakv.storage.settings import CacheSettings, SettingsModel
from stratakv.storage.stores.settings import StoreSettings

DEFAULT_WORKER_CLASS = "stratakv.actors.worker.worker:Worker"
TRACKED_AT_ONCE = 64
"""Requests that one worker actor shows on the Ray dashboard at the same time; each takes a thread that sleeps."""


class WorkerConfig(SettingsModel):
    """Everything one rank of one generation must know. Travels through Ray."""

    cluster_id: str
    replica: int
    rank: int
    ranks: int = 1
    """How many ranks the replica has: tensor_parallel."""
    generation: int
    gateway_key: str
    """CURVE public key (Z85) of the gateways: the only clients a head admits."""
    model: ModelSettings = ModelSettings()
    cache: CacheSettings = CacheSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    store: StoreSettings = StoreSettings(url=None)
    wire: WireSettings = WireSettings()
    heartbeat: HeartbeatSettings = HeartbeatSettings()
    worker_class: str = DEFAULT_WORKER_CLASS
    """`module:Class` that fulfils RankWorker."""
    start_timeout: float = 600.0
    """Seconds that ranks wait for each other while they start."""


class StartError(Exception):
    """The rank cannot start and trying again would not help: bad settings or a bad model. Names the remedy.

    Any other exception from `start` counts as a mishap, and the supervisor tries the next generation.
    """


class Heartbeat(msgspec.Struct, frozen=True):
    """A sign of life of the engine, not just of the process.

    `step` is the latest step; `step_age` the seconds it has been working on it, 0 while idle, None until the first
    step of all has run.
    """

    step: int
    step_age: float | None


class RankWorker(Protocol):
    """One rank of a replica: its model shard, its pools, and, on rank 0, the head. Methods may come from any thread."""

    def __init__(self, config: WorkerConfig) -> None:
        """Keep the config; no work and no allocation yet."""

    def start(self, meeting: Meeting) -> Endpoint | None:
        """Load the model, open pools and slab, bind the socket, start the engine. Blocks; StartError if hopeless.

        `meeting` is how the ranks of this generation find each other. The endpoint of rank 0; None on the others.
        """

    def heartbeat(self) -> Heartbeat:
        """The engine's sign of life; never blocks. Called only after `start` has returned."""

    def idle_check(self) -> list[str]:
        """What is wrong with an idle rank: slots that leaked, holds never released. Empty when all is well."""

    def wait_for(self, id: str, deadline: float) -> None:
        """Return when request `id` is over, or after `deadline` seconds; at once if it is not live here."""

    def drain(self, deadline: float) -> None:
        """Take no new request and wait up to `deadline` seconds for the running ones; the rest is aborted."""

    def stop(self) -> None:
        """End the engine, close the socket, release memory. May be called at any time, more than once."""
