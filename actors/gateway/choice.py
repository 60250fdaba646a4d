"""Where the gateway sends a request: the router's answer, or its own choice while no router answers."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from stratakv.actors.gateway.link import Contact, HeadLink
from stratakv.cluster.events import pack_keys
from stratakv.cluster.messages import Generate, Usage
from stratakv.cluster.routing.route import Actual, Route, RouteQuery
from stratakv.storage.keys import chain, namespace_seed

_log = logging.getLogger(__name__)

_LONG = 32_768  # prompt tokens whose keys are chained in a thread: more would hold up other answers for a millisecond
_REST = 1.0  # seconds a router that failed is left alone
_REPORT_EVERY = 0.5  # seconds in which outcomes are gathered


class Decision(StrEnum):
    """Who chose the replica of a request, and if it was not the router, why not."""

    ROUTED = "routed"
    NO_ROUTER = "no router"
    """This gateway has none."""
    RESTING = "router resting"
    """It failed a moment ago."""
    DEADLINE = "router deadline"
    FAILED = "router failed"
    NOT_LIVE = "replica not live"
    """It chose a replica that was not to be had."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The head a request goes to, who chose it, and the router's word on it if it was the router."""

    head: HeadLink
    decision: Decision
    route: Route | None = None

    @property
    def reason(self) -> str:
        """Why this replica, in a few fixed words: the router's reason, or why the router had no say."""
        return str(self.route.reason if self.route else self.decision)


class Router(Protocol):
    """Chooses where a request runs. All methods are called on one event loop."""

    decisions: Counter[Decision]
    """Choices so far, by who made them; for metrics."""

    async def route(self, request: Generate, live: Sequence[HeadLink]) -> Choice:
        """One of `live`, which is never empty. Never fails."""

    def report(self, choice: Choice, usage: Usage) -> None:
        """What came of a choice, told once per request. Returns at once."""

    async def close(self) -> None:
        """End what runs in the background."""


class RouterCalls(Protocol):
    """The router actor, as the gateway calls it. Both may raise anything."""

    async def route(self, query: RouteQuery) -> Route:
        """Where the request should go."""

    async def report(self, actuals: list[Actual]) -> None:
        """What came of earlier routes."""


class LeastInFlight:
    """The head that has the fewest requests of this gateway; ties go to the lowest replica."""

    def __init__(self) -> None:
        self.decisions: Counter[Decision] = Counter()

    async def route(self, request: Generate, live: Sequence[HeadLink]) -> Choice:
        """The least loaded of `live`."""
        self.decisions[Decision.NO_ROUTER] += 1
        return Choice(_least_in_flight(live), Decision.NO_ROUTER)

    def report(self, choice: Choice, usage: Usage) -> None:
        """Nobody wants to know."""

    async def close(self) -> None:
        """Nothing runs."""


class RemoteRouter:
    """Asks the router and waits up to `deadline` seconds. If that comes to nothing, the head with the fewest requests
    of this gateway is taken, and the router left alone for a second: one request pays for its death, not all."""

    def __init__(self, calls: RouterCalls, deadline: float):
        self._calls = calls
        self._deadline = deadline
        self._rests_until = 0.0
        self._actuals: list[Actual] = []
        self._telling: asyncio.Task[None] | None = None
        self.decisions: Counter[Decision] = Counter()

    async def route(self, request: Generate, live: Sequence[HeadLink]) -> Choice:
        """The router's choice among `live`, or ours."""
        clock = asyncio.get_running_loop().time
        if clock() < self._rests_until:
            return self._choose(Decision.RESTING, live)
        query = await _query(request, live)
        try:
            route = await asyncio.wait_for(self._calls.route(query), self._deadline)
        except TimeoutError:
            decision = Decision.DEADLINE
            _log.warning("the router did not answer within %g s (router.deadline)", self._deadline)
        except Exception as error:  # of whatever kind: an answer without the router is better than none
            decision = Decision.FAILED
            _log.warning("the router failed: %s: %s", type(error).__name__, error)
        else:
            for head in live:
                if head.endpoint.replica == route.replica and head.contact is not Contact.LOST:
                    self.decisions[Decision.ROUTED] += 1
                    return Choice(head, Decision.ROUTED, route)
            return self._choose(Decision.NOT_LIVE, live)
        self._rests_until = clock() + _REST
        return self._choose(decision, live)

    def _choose(self, decision: Decision, live: Sequence[HeadLink]) -> Choice:
        self.decisions[decision] += 1
        return Choice(_least_in_flight(live), decision)

    def report(self, choice: Choice, usage: Usage) -> None:
        """Tell the router within half a second, together with what else comes by then."""
        if choice.route is None:
            return
        self._actuals.append(Actual(choice.route.receipt, usage))
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        while self._actuals:
            await asyncio.sleep(_REPORT_EVERY)
            actuals, self._actuals = self._actuals, []
            try:
                await asyncio.wait_for(self._calls.report(actuals), self._deadline)
            except Exception as error:  # receipts are for people; nothing depends on them
                told = type(error).__name__
                _log.warning("%d outcomes could not be told to the router (%s)", len(actuals), told)
        self._telling = None

    async def close(self) -> None:
        """What has not been told yet is dropped."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)


def _least_in_flight(live: Sequence[HeadLink]) -> HeadLink:
    """Of those that were not lost while the router was asked, if there are any."""
    usable = [head for head in live if head.contact is not Contact.LOST] or live
    return min(usable, key=lambda head: (head.in_flight, head.endpoint.replica))


async def _query(request: Generate, live: Sequence[HeadLink]) -> RouteQuery:
    tokens = len(request.tokens) // 4
    page_size = live[0].endpoint.card.page_size
    if tokens > _LONG:
        keys = await asyncio.to_thread(_page_keys, request, page_size)
    else:
        keys = _page_keys(request, page_size)
    replicas = tuple(head.endpoint.replica for head in live)
    return RouteQuery(keys=keys, tokens=tokens, page_size=page_size, live=replicas)


def _page_keys(request: Generate, page_size: int) -> bytes:
    """Keys of all full pages of the prompt. Not checked: the head chains its own."""
    seed = namespace_seed(request.extra_key, request.cache_salt)
    return pack_keys(chain(np.frombuffer(request.tokens, dtype="<u4"), page_size, after=seed))
