"""The `track` task of a request: what makes it visible on the Ray dashboard, with the hit as it really was.

A request goes to its head over ZeroMQ, where Ray does not see it. So when its first token arrives, the gateway also
calls `track` of the worker actor that runs it, under a name of a few fixed words, and looks no further: the call is
never waited for, and whatever becomes of it changes nothing.
"""

from random import Random
from typing import Protocol

from stratakv.cluster.messages import Endpoint, Usage

_BUCKETS = ("0-25%", "25-50%", "50-75%", "75-99%")


class Tracker(Protocol):
    """Makes requests visible. Both methods return at once and never fail."""

    def begin(self, endpoint: Endpoint, id: str, usage: Usage) -> None:
        """The first token of request `id` has come from `endpoint`; `usage` is the account of its prompt."""

    def end(self, endpoint: Endpoint, id: str) -> None:
        """The request is over, also one that was never begun."""


class Untracked:
    """Makes nothing visible."""

    def begin(self, endpoint: Endpoint, id: str, usage: Usage) -> None:
        """Nothing."""

    def end(self, endpoint: Endpoint, id: str) -> None:
        """Nothing."""


class TrackCalls(Protocol):
    """The worker actors, as tracking calls them."""

    def track(self, endpoint: Endpoint, id: str, name: str) -> None:
        """Start the task `name` at rank 0 of the replica. Returns at once, never fails."""


class Tracking:
    """Tracks a share `sample` (0 to 1) of all requests, drawn at random, at most `limit` at a time at one replica."""

    def __init__(self, calls: TrackCalls, sample: float, limit: int, random: Random):
        self._calls, self._sample, self._limit, self._random = calls, sample, limit, random
        self._live: dict[int, set[str]] = {}

    def begin(self, endpoint: Endpoint, id: str, usage: Usage) -> None:
        """See Tracker. Above the limit the request is left out."""
        live = self._live.setdefault(endpoint.replica, set())
        if len(live) < self._limit and self._random.random() < self._sample:
            live.add(id)
            self._calls.track(endpoint, id, task_name(usage))

    def end(self, endpoint: Endpoint, id: str) -> None:
        """See Tracker."""
        self._live.get(endpoint.replica, set()).discard(id)


def task_name(usage: Usage) -> str:
    """`generate [host hit 75-99%]`: the tier that gave most, and how much of the prompt all tiers gave together.

    The words are few, since Ray groups tasks by name. A hit is never all of a prompt: its last token is computed.
    """
    hits = {"device": usage.device, "host": usage.host, "store": usage.store}
    cached = sum(hits.values())
    if not cached:
        return "generate [no hit]"
    tier = max(hits, key=hits.__getitem__)
    bucket = _BUCKETS[min(cached * len(_BUCKETS) // usage.prompt, len(_BUCKETS) - 1)]
    return f"generate [{tier} hit {bucket}]"
