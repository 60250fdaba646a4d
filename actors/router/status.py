"""What the router tells operators and the demo. Travels through Ray."""

import msgspec

from stratakv.cluster.routing.route import Reason, Receipt


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """A generation of a replica that the supervisor no longer has. `at` is in seconds since the epoch."""

    replica: int
    generation: int
    at: float


class ReplicaPages(msgspec.Struct, frozen=True, kw_only=True):
    """What the router knows of a replica.

    `exact` says whether it has followed every change; `device_pages` and `host_pages` (on the host alone) add up to
    what the replica holds; `load` is the number of requests there.
    """

    replica: int
    generation: int
    exact: bool
    device_pages: int
    host_pages: int
    load: int
    snapshots: int


class RouteTotal(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests were sent to a replica for a reason."""

    replica: int
    reason: Reason
    routes: int


class RouterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The router at one moment. Of the routes whose outcome was told, `promised_tokens` were expected from device and
    host and `delivered_tokens` came from there; `pages` is how many different pages are known."""

    policy: str
    pages: int
    replicas: list[ReplicaPages]
    routes: list[RouteTotal]
    deaths: list[Death]
    promised_tokens: int
    delivered_tokens: int
    unknown_receipts: int
    latest: list[Receipt]
