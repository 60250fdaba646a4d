"""What the router actor is started with. Travels through Ray, and again at each restart of the actor."""

import msgspec

from stratakv.cluster.messages import KeyPair
from stratakv.cluster.settings import HeartbeatSettings, RouterSettings, WireSettings


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`namespace` is where the supervisor is found; `keys` the clients' common CURVE pair, which gateways have too."""

    namespace: str
    settings: RouterSettings
    wire: WireSettings
    heartbeat: HeartbeatSettings
    keys: KeyPair
    replicas: int
