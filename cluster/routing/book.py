"""The route book: chooses a replica for each request and keeps account of what it chose, and of what came of it.

Pure: whoever owns it feeds it page events and beats, and asks.
"""

from collections import Counter
from random import Random
from typing import NamedTuple

from stratakv.cluster.events import PackedKeys
from stratakv.cluster.messages import Beat
from stratakv.cluster.routing.directory import Depth, Directory
from stratakv.cluster.routing.policies import ROUTE_POLICIES, Candidate
from stratakv.cluster.routing.receipts import Receipts
from stratakv.cluster.routing.route import Actual, Reason, Route, RouteQuery


class RouteCount(NamedTuple):
    """What a count of routes is about."""

    replica: int
    reason: Reason


class RouteBook:
    """Directory, loads, one policy and the receipts of the last routes. UnknownName for a policy there is not.

    A replica's load is what its head said in its last beat, plus the routes to it since: those it may not have counted
    yet. Nothing draws from any but `random`.
    """

    def __init__(self, policy: str, receipts: int, random: Random):
        self.policy = policy
        self.directory = Directory()
        self.counts: Counter[RouteCount] = Counter()
        """Routes so far."""
        self.promised_tokens = 0
        """What was expected from device and host, of the routes whose outcome has been told."""
        self.delivered_tokens = 0
        """What device and host served of these."""
        self.unknown_receipts = 0
        """Outcomes told of routes that are not remembered any more."""
        # Gateways may report what a router before this one has decided; its numbers should mean nothing here.
        self.receipts = Receipts(receipts, first=random.getrandbits(48))
        self._policy = ROUTE_POLICIES.get(policy)(random)
        self._beats: dict[int, Beat] = {}
        self._since_beat: Counter[int] = Counter()

    def heard(self, replica: int, beat: Beat) -> None:
        """A head says how busy it is."""
        self._beats[replica] = beat
        del self._since_beat[replica]

    def forget(self, replica: int) -> None:
        """The replica is gone, with its pages and its load."""
        self.directory.forget(replica)
        self._beats.pop(replica, None)
        del self._since_beat[replica]

    def load(self, replica: int) -> int:
        """Requests the replica has to do with, as far as is known."""
        beat = self._beats.get(replica)
        return self._since_beat[replica] + (beat.running + beat.waiting if beat else 0)

    def route(self, query: RouteQuery) -> Route:
        """Choose one of `query.live`. ValueError when there is none, or when the keys are not whole."""
        if not query.live:
            raise ValueError("a query names no live replica to choose from")
        # One token of a prompt is always computed, so its page is of no use if it is the last.
        usable = max(0, query.tokens - 1) // query.page_size
        depths = self.directory.depth(PackedKeys(query.keys)[:usable])
        found = {replica: depths.get(replica, Depth()) for replica in sorted(set(query.live))}
        candidates = [
            Candidate(replica, depth.device, depth.held, self.load(replica))
            for replica, depth in found.items()
        ]
        choice = self._policy.choose(candidates)
        reason = choice.reason if len(candidates) > 1 else Reason.ONLY_REPLICA
        depth = found[choice.replica]
        route = Route(
            replica=choice.replica,
            device_tokens=depth.device * query.page_size,
            host_tokens=(depth.held - depth.device) * query.page_size,
            policy=self.policy,
            reason=reason,
            receipt=self.receipts.next_id,
        )
        self.receipts.add(route, query.tokens)
        self.counts[RouteCount(choice.replica, reason)] += 1
        self._since_beat[choice.replica] += 1
        return route

    def report(self, actual: Actual) -> None:
        """Note what came of a route. One that is not remembered is only counted."""
        receipt = self.receipts.settle(actual)
        if receipt is None:
            self.unknown_receipts += 1
            return
        self.promised_tokens += receipt.route.device_tokens + receipt.route.host_tokens
        self.delivered_tokens += actual.usage.device + actual.usage.host
