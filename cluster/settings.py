"""Settings that more than one actor reads: how silence is judged and how the wire is bound."""

from pydantic import Field

from stratakv.storage.settings import SettingsModel, Size


class HeartbeatSettings(SettingsModel):
    """When a silent rank is taken for dead (seconds)."""

    interval: float = Field(1.0, gt=0, description="seconds between two reports of a rank")
    timeout: float = Field(5.0, gt=0, description="seconds of silence after which a rank is replaced")
    step_timeout: float = Field(60.0, gt=0, description="seconds one step may take, once the first has run")


class WireSettings(SettingsModel):
    """The ZeroMQ link between gateways and heads."""

    bind_host: str = Field("127.0.0.1", description="interface a head binds; clients must know its CURVE key")
    max_message: Size = Field(64 * 2**20, description="largest message taken from a peer")
