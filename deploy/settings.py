"""The one settings tree. Each floor owns its part; here they are put together, and what this version lacks is refused.

Where values come from, and which wins, is `sources.py`'s business: this is only what may be set.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from stratakv.actors.settings import ModelSettings, SchedulerSettings
from stratakv.actors.supervisor.settings import SupervisorSettings
from stratakv.api.settings import ApiSettings
from stratakv.cluster.settings import HeartbeatSettings, WireSettings
from stratakv.storage.settings import CacheSettings, SettingsModel, Size, parse_size

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
    temp_dir: Path = Field(Path("/tmp"), description="where the cluster's own folder is made; keep it short")


class StoreSettings(SettingsModel):
    """The shared store below host memory (L3)."""

    url: str | None = Field(None, description="where the store is; none in this version")
    capacity: Size | None = Field(None, description="bytes the store may hold")


class RouterSettings(SettingsModel):
    """How a replica is chosen for a request. With one replica every policy chooses the same."""

    policy: Literal[
        "predicted_ttft", "deepest_hit", "least_loaded", "round_robin", "consistent_hash", "power_of_two"
    ] = Field("predicted_ttft", description="how a replica is chosen for a request")


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

    @field_validator("replicas")
    @classmethod
    def _one_replica(cls, replicas: int) -> int:
        if replicas > 1:
            raise ValueError(f"this version runs one replica, not {replicas}; leave it at 1")
        return replicas

    @field_validator("tensor_parallel")
    @classmethod
    def _one_rank(cls, ranks: int) -> int:
        if ranks > 1:
            raise ValueError(f"this version runs a replica on one rank, not {ranks}; leave it at 1")
        return ranks

    @field_validator("store")
    @classmethod
    def _no_store(cls, store: StoreSettings) -> StoreSettings:
        for name, value in (("url", store.url), ("capacity", store.capacity)):
            if value is not None:
                raise ValueError(
                    f"{name} is set, but this version has no store; leave the store's settings out"
                )
        return store

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
