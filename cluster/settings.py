"""Settings that more than one actor reads: how silence is judged, how the wire is bound, how replicas are chosen."""

from pydantic import Field, field_validator, model_validator

from stratakv.cluster.routing.policies import ROUTE_POLICIES
from stratakv.storage.settings import SettingsModel, Size

_ANY_HOST = ("0.0.0.0", "*", "::", "[::]")


class HeartbeatSettings(SettingsModel):
    """When a silent rank is taken for dead (seconds)."""

    interval: float = Field(1.0, gt=0, description="seconds between two reports of a rank")
    timeout: float = Field(5.0, gt=0, description="seconds of silence after which a rank is replaced")
    step_timeout: float = Field(60.0, gt=0, description="seconds one step may take, once the first has run")


class WireSettings(SettingsModel):
    """The ZeroMQ link between heads and those who talk to them: gateways and the router."""

    bind_host: str = Field("127.0.0.1", description="interface a head binds; clients must know its CURVE key")
    advertise_host: str | None = Field(
        None, description="host that clients connect to; by default bind_host, must be set if that is 0.0.0.0"
    )
    max_message: Size = Field(64 * 2**20, description="largest message taken from a peer")
    backlog: int = Field(
        10_000, ge=1, description="messages that may wait for a slow client before its requests are aborted"
    )

    @model_validator(mode="after")
    def _clients_know_where(self) -> "WireSettings":
        if self.bind_host in _ANY_HOST and self.advertise_host is None:
            raise ValueError(
                f"wire.bind_host is {self.bind_host}, which binds every interface but is no host to connect to; set "
                "wire.advertise_host to the address by which other machines reach this one"
            )
        return self


class RouterSettings(SettingsModel):
    """How a replica is chosen for a request. With one replica every policy chooses the same."""

    policy: str = Field("deepest_hit", description="how a replica is chosen for a request")
    deadline: float = Field(
        1.0, gt=0, description="seconds a gateway waits for the router before it chooses by itself"
    )
    receipts: int = Field(1000, ge=1, description="latest decisions that the router remembers")

    @field_validator("policy")
    @classmethod
    def _is_known(cls, policy: str) -> str:
        ROUTE_POLICIES.get(policy)
        return policy
