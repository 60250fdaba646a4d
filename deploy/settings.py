"""The one settings tree. Each floor owns its part; here they are put together, and what this version lacks is refused.

Where values come from, and which wins, is `sources.py`'s business: this is only what may be set.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from stratakv.actors.settings import ModelSettings, SchedulerSettings
from stratakv.actors.supervisor.settings import SupervisorSettings
from stratakv.api.settings import ApiSettings
from stratakv.cluster.settings import HeartbeatSettings, RouterSettings, WireSettings
from stratakv.storage.policies.eviction import EVICTION_POLICIES
from stratakv.storage.policies.prefetch import PREFETCH_POLICIES
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.settings import CacheSettings, SettingsModel, Size, parse_size
from stratakv.storage.stores.settings import StoreSettings

ENV_PREFIX = "STRATAKV_"
ENV_DELIMITER = "__"


class RaySettings(SettingsModel):
    """The Ray cluster underneath."""

    address: str | None = Field(
        None, description="`auto` or host:port of a running Ray; by default we start our own"
    )
    dashboard_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="port of the Ray dashboard; by default 8265, or a free one if that is taken",
    )
    object_store_memory: Size = Field(
        parse_size("80MiB"),
        ge=parse_size("76MiB"),
        description="bytes of Ray's object store, which shares /dev/shm",
    )
    auth: Literal["token", "disabled"] = Field(
        "token", description="whether Ray and its dashboard ask for a token"
    )
    track: float = Field(
        1.0, ge=0, le=1, description="share of requests shown as tasks on the Ray dashboard; 0 for none"
    )
    temp_dir: Path = Field(Path("/tmp"), description="where the cluster's own folder is made; keep it short")


class StrataSettings(BaseSettings):
    """Everything that can be set. `STRATAKV_CACHE__PAGE_SIZE=32` sets `cache.page_size`, and so on for all of them."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter=ENV_DELIMITER
    )

    replicas: int = Field(1, ge=1, description="copies of the model")
    tensor_parallel: int = Field(1, ge=1, description="ranks one copy is split over")
    model: ModelSettings = ModelSettings()
    cache: CacheSettings = CacheSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    store: StoreSettings = StoreSettings()
    router: RouterSettings = RouterSettings()
    api: ApiSettings = ApiSettings()
    wire: WireSettings = WireSettings()
    heartbeat: HeartbeatSettings = HeartbeatSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    ray: RaySettings = RaySettings()

    @model_validator(mode="after")
    def _policies_are_known(self) -> "StrataSettings":
        for registry, name in (
            (WRITE_POLICIES, self.cache.write_policy),
            (EVICTION_POLICIES, self.cache.eviction_policy),
            (PREFETCH_POLICIES, self.store.prefetch_policy),
        ):
            registry.get(name)
        return self

    @model_validator(mode="after")
    def _store_needs_host_memory(self) -> "StrataSettings":
        if self.store.url is not None and not self.cache.host_memory:
            raise ValueError(
                "store.url is set and cache.host_memory is 0: pages go to the store and come back through host memory; "
                "give it some, or turn the store off with --store none"
            )
        return self

    @model_validator(mode="after")
    def _stored_shares_fit_the_ranks(self) -> "StrataSettings":
        ranks, shares = self.tensor_parallel, self.store.head_groups
        # With more ranks than KV heads several have the same share, so either may be the multiple of the other.
        if shares is not None and shares % ranks and ranks % shares:
            raise ValueError(
                f"store.head_groups is {shares} and tensor_parallel is {ranks}: a rank would hold parts of stored "
                f"shares; make store.head_groups a multiple of {ranks}, or leave it out"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is handed in counts: `sources.py` reads file, environment and flags and knows which is which."""
        return (init_settings,)
