"""The router as a plain class: a feed per head, and the route book that they fill. Asked once for each request."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

import zmq.asyncio

from stratakv.actors.router.config import RouterConfig
from stratakv.actors.router.feed import Feed
from stratakv.actors.router.status import Death, ReplicaPages, RouterStatus, RouteTotal
from stratakv.cluster.messages import Endpoint
from stratakv.cluster.routing.book import RouteBook
from stratakv.cluster.routing.route import Actual, Route, RouteQuery

_DEATHS = 100  # remembered
_LATEST = 20  # receipts in a status


class Router:
    """Routes over the replicas it was told of. All methods run on one event loop.

    `random` breaks ties; `clock` gives seconds since the epoch.
    """

    def __init__(self, config: RouterConfig, random: Random, clock: Callable[[], float] = time.time):
        self._config = config
        self._clock = clock
        self._book = RouteBook(config.settings.policy, config.settings.receipts, random)
        self._feeds: dict[int, Feed] = {}
        self._deaths: deque[Death] = deque(maxlen=_DEATHS)
        self._context = zmq.asyncio.Context()

    async def set_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        """Follow exactly these heads from now on. Those that vanished or were replaced have died, and what they held
        is forgotten. An endpoint older than the one in use for its replica is ignored."""
        named = {endpoint.replica: endpoint for endpoint in endpoints}
        for replica, feed in list(self._feeds.items()):
            endpoint = named.get(replica)
            if endpoint is None or endpoint.generation > feed.endpoint.generation:
                await self._bury(replica)
        for replica, endpoint in named.items():
            if replica not in self._feeds:
                config = self._config
                feed = Feed(endpoint, config.keys, config.wire, config.heartbeat, self._context, self._book)
                self._feeds[replica] = feed
                feed.start()

    async def _bury(self, replica: int) -> None:
        feed = self._feeds.pop(replica)
        await feed.close()
        self._book.forget(replica)
        self._deaths.append(Death(replica=replica, generation=feed.endpoint.generation, at=self._clock()))

    async def close(self) -> None:
        """End all feeds."""
        await asyncio.gather(*(feed.close() for feed in self._feeds.values()))
        self._feeds.clear()
        self._context.destroy(linger=0)

    def check(self) -> None:
        """Raise what ended a feed by itself: then this router must be replaced by a new one."""
        for feed in self._feeds.values():
            feed.check()

    def route(self, query: RouteQuery) -> Route:
        """Where the request should go: one of `query.live`, known here or not. ValueError if that is empty."""
        return self._book.route(query)

    def report(self, actuals: Sequence[Actual]) -> None:
        """What came of earlier routes."""
        for actual in actuals:
            self._book.report(actual)

    def deaths(self) -> list[Death]:
        """The last deaths, the oldest first."""
        return list(self._deaths)

    def status(self) -> RouterStatus:
        """The router of now, for people."""
        book = self._book
        return RouterStatus(
            policy=book.policy,
            pages=len(book.directory),
            replicas=[self._pages(feed) for _, feed in sorted(self._feeds.items())],
            routes=[
                RouteTotal(replica=count.replica, reason=count.reason, routes=routes)
                for count, routes in sorted(book.counts.items())
            ],
            deaths=self.deaths(),
            promised_tokens=book.promised_tokens,
            delivered_tokens=book.delivered_tokens,
            unknown_receipts=book.unknown_receipts,
            latest=book.receipts.latest(_LATEST),
        )

    def _pages(self, feed: Feed) -> ReplicaPages:
        endpoint = feed.endpoint
        known = self._book.directory.known.get(endpoint.replica)
        return ReplicaPages(
            replica=endpoint.replica,
            generation=endpoint.generation,
            exact=known is not None and known.exact,
            device_pages=known.device if known else 0,
            host_pages=known.held - known.device if known else 0,
            load=self._book.load(endpoint.replica),
            snapshots=feed.snapshots,
        )
