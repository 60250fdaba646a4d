"""Replicas behind the real router: a request goes where the route book sends it, by the replicas' own page events."""

import heapq
from random import Random

from stratakv.cluster.events import pack_keys
from stratakv.cluster.messages import Beat, Usage
from stratakv.cluster.replay.replica import Replica
from stratakv.cluster.replay.request import ReplayRequest
from stratakv.cluster.replay.settings import FleetSettings, PaceSettings, ReplicaSettings
from stratakv.cluster.replay.shelf import Shelf
from stratakv.cluster.routing.book import RouteBook
from stratakv.cluster.routing.route import RouteQuery
from stratakv.storage.residence import Holdings

_GENERATION = 1


class _Desk:
    """What one replica is busy with at a time: prompts one after the other, answers beside them."""

    def __init__(self, pace: PaceSettings):
        self._pace = pace
        self._computed_upto = 0.0
        self._ends: list[float] = []

    def begin(self, now: float, computed: int, output: int) -> None:
        """A request arrives that computes `computed` tokens of its prompt and has `output` tokens of answer."""
        self._computed_upto = max(now, self._computed_upto) + computed / self._pace.prefill_rate
        heapq.heappush(self._ends, self._computed_upto + output / self._pace.decode_rate)

    def in_flight(self, now: float) -> int:
        """Requests that have not ended. `now` never goes back."""
        while self._ends and self._ends[0] <= now:
            heapq.heappop(self._ends)
        return len(self._ends)


class Fleet:
    """Equal replicas, one shelf, one route book.

    Pages move at once, and a request has done all it does to the caches before the next one is routed; only the load
    that the router sees lasts, by the trace's own clock.
    """

    def __init__(self, replica: ReplicaSettings, settings: FleetSettings):
        count, shelf = settings.replicas, Shelf(settings.store_pages)
        self.replicas = [Replica(replica, shelf) for _ in range(count)]
        self._book = RouteBook(settings.router_policy, receipts=1, random=Random(settings.seed))
        self._desks = [_Desk(settings.pace) for _ in range(count)]
        self._sequence = [0] * count
        self._page_size = replica.page_size
        for number in range(count):
            self._book.directory.load_snapshot(number, _GENERATION, 0, Holdings([], []))

    def serve(self, request: ReplayRequest) -> tuple[int, Usage]:
        """Route `request` and serve it. Returns the replica's number and the account."""
        for number, desk in enumerate(self._desks):
            beat = Beat(_GENERATION, 0, 0, desk.in_flight(request.seconds), self._sequence[number])
            self._book.heard(number, beat)
        route = self._book.route(
            RouteQuery(
                keys=pack_keys(request.keys),
                tokens=request.prompt_tokens,
                page_size=self._page_size,
                live=tuple(range(len(self.replicas))),
            )
        )
        usage = self.replicas[route.replica].serve(request)
        self._desks[route.replica].begin(request.seconds, usage.computed, request.output_tokens)
        self._announce(route.replica)
        return route.replica, usage

    def _announce(self, number: int) -> None:
        changes = self.replicas[number].hierarchy.tree.log.drain()
        if changes:
            self._sequence[number] += 1
            self._book.directory.apply(number, _GENERATION, self._sequence[number], changes)
