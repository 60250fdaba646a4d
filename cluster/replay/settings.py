"""What can be set in a replay: the sizes and policies of a replica, in tokens, and how fast one is taken to be."""

from pydantic import Field, field_validator, model_validator

from stratakv.cluster.routing.policies import ROUTE_POLICIES
from stratakv.storage.policies.eviction import EVICTION_POLICIES
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.settings import SettingsModel


class ReplicaSettings(SettingsModel):
    """One replica without a model. Tokens that do not fill a page are of no use, so sizes are rounded down to pages.

    UnknownName for a policy there is not; ValueError for sizes that contradict each other.
    """

    page_size: int = Field(ge=1, description="tokens in a page")
    device_tokens: int = Field(ge=1, description="tokens the device tier holds")
    host_tokens: int = Field(0, ge=0, description="tokens the host tier holds; 0 turns it off")
    has_store: bool = Field(False, description="whether there is a store behind the host tier")
    eviction_policy: str = "lru"
    write_policy: str = "write_through"
    prefetch_threshold: int = Field(
        256, ge=1, description="fewer tokens than this are not read from the store"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "ReplicaSettings":
        EVICTION_POLICIES.get(self.eviction_policy)
        WRITE_POLICIES.get(self.write_policy)
        if not self.device_pages:
            raise ValueError(
                f"device_tokens is {self.device_tokens}, less than a page of {self.page_size} tokens (page_size)"
            )
        if self.has_store and not self.host_pages:
            raise ValueError(
                f"store_tokens asks for a store, and host_tokens is {self.host_tokens}: pages from the store land in "
                f"host memory; give host_tokens {2 * self.page_size} or more, or store_tokens 0"
            )
        if self.write_policy == "write_back" and not self.host_pages:
            raise ValueError(
                f"write_policy is write_back, and host_tokens is {self.host_tokens}: there is nothing to write back to"
            )
        return self

    @property
    def device_pages(self) -> int:
        """Pages the device tier holds."""
        return self.device_tokens // self.page_size

    @property
    def host_pages(self) -> int:
        """Pages the host tier holds."""
        return self.host_tokens // self.page_size


class PaceSettings(SettingsModel):
    """How fast a replica is taken to be. Used only to tell how many requests it has in flight when the router asks:
    prompts are computed one after the other, and answers come beside them."""

    prefill_rate: float = Field(20_000, gt=0, description="prompt tokens computed per second")
    decode_rate: float = Field(50, gt=0, description="tokens of an answer per second")


class FleetSettings(SettingsModel):
    """Several equal replicas behind a router, and the store they share. UnknownName for a policy there is not."""

    replicas: int = Field(1, ge=1)
    router_policy: str = Field("deepest_hit", description="how the router chooses a replica")
    store_pages: int | None = Field(0, ge=0, description="pages the store holds; None for any number")
    seed: int = 0
    pace: PaceSettings = PaceSettings()

    @field_validator("router_policy")
    @classmethod
    def _known(cls, policy: str) -> str:
        ROUTE_POLICIES.get(policy)
        return policy
