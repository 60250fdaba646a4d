"""What a gateway asks the router, what it is answered, and what it tells the router afterwards. Travels through Ray."""

from enum import StrEnum

import msgspec

from stratakv.cluster.messages import Usage


class Reason(StrEnum):
    """Why a replica was chosen: few fixed words, for metrics and the dashboard."""

    ONLY_REPLICA = "only replica"
    DEEPEST_HIT = "deepest hit"
    """It alone holds the most of the prompt."""
    EQUAL_HITS = "equal hits"
    """Several hold the most of it; the one with the least load was taken."""
    NO_HIT = "no hit"
    """Nobody holds any of it; the one with the least load was taken."""
    LEAST_LOADED = "least loaded"
    IN_TURN = "in turn"


class RouteQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A request that needs a replica: its page keys end to end, its prompt tokens, and the replicas that its gateway
    can reach."""

    keys: bytes
    tokens: int
    page_size: int
    live: tuple[int, ...]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request goes, and what it is expected to find there in tokens: on the device, and on the host alone.

    `receipt` is the number under which the router remembers it.
    """

    replica: int
    device_tokens: int
    host_tokens: int
    policy: str
    reason: Reason
    receipt: int


class Actual(msgspec.Struct, frozen=True):
    """What came of a route: the account of the prompt, as the head made it up."""

    receipt: int
    usage: Usage


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What the router decided for a prompt of `tokens` tokens and why, and what then happened (None until told)."""

    route: Route
    tokens: int
    actual: Usage | None = None
