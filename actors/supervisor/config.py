"""What the supervisor actor is started with: all it needs to start every other actor, also after its own restart."""

import msgspec

from stratakv.actors.gateway.config import GatewayConfig
from stratakv.actors.router.config import RouterConfig
from stratakv.actors.settings import ModelSettings, SchedulerSettings
from stratakv.actors.supervisor.settings import SupervisorSettings
from stratakv.actors.worker.config import WorkerConfig
from stratakv.storage.settings import CacheSettings
from stratakv.storage.stores.settings import StoreSettings


class SupervisorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster. `gpus` is how many GPUs a rank takes, 0 or 1."""

    cluster_id: str
    namespace: str
    replicas: int
    tensor_parallel: int
    gpus: int
    model: ModelSettings
    cache: CacheSettings
    scheduler: SchedulerSettings
    store: StoreSettings
    settings: SupervisorSettings
    gateway: GatewayConfig
    router: RouterConfig

    def worker(self, replica: int, rank: int, generation: int) -> WorkerConfig:
        """What a rank is started with."""
        return WorkerConfig(
            cluster_id=self.cluster_id,
            replica=replica,
            rank=rank,
            ranks=self.tensor_parallel,
            generation=generation,
            gateway_key=self.gateway.keys.public,
            model=self.model,
            cache=self.cache,
            scheduler=self.scheduler,
            store=self.store,
            wire=self.gateway.wire,
            heartbeat=self.gateway.heartbeat,
            worker_class=self.settings.worker_class,
            start_timeout=self.settings.start_timeout,
        )
