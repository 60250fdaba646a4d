"""What the gateway actor is started with. Travels through Ray, and again at each restart of the actor."""

import msgspec

from stratakv.api.settings import ApiSettings
from stratakv.cluster.messages import KeyPair
from stratakv.cluster.settings import HeartbeatSettings, RouterSettings, WireSettings


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`namespace` is where the supervisor is found; `keys` the gateways' common CURVE pair.

    `track_sample` is the share of requests that become a task on the Ray dashboard."""

    namespace: str
    api: ApiSettings
    wire: WireSettings
    heartbeat: HeartbeatSettings
    router: RouterSettings
    keys: KeyPair
    replicas: int
    track_sample: float = 1.0
