"""Which of several replicas a request goes to. Asked by the route book, which brings the figures."""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, Protocol

from stratakv.cluster.routing.route import Reason
from stratakv.storage.registry import Registry


class Candidate(NamedTuple):
    """A replica that could take the request: the pages of it that it has on the device and holds at all, and how many
    requests it has to do with."""

    replica: int
    device: int
    held: int
    load: int


class Choice(NamedTuple):
    """The replica, and why."""

    replica: int
    reason: Reason


class RoutePolicy(Protocol):
    """Chooses a replica. Draws from nothing but the Random it was made with."""

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        """One of `candidates`, which are never empty and in order of their replicas."""


ROUTE_POLICIES: Registry[Callable[[Random], RoutePolicy]] = Registry("routing policy", "router.policy")


@ROUTE_POLICIES.register("deepest_hit")
class DeepestHit:
    """The replica that holds the most of the prompt; of equals the least loaded, then the one with more of it on the
    device, then any.

    Use it when histories come back: a conversation stays where its pages are. A prefix that everybody shares draws
    everybody to the replicas that hold it, until the others have computed it too.
    """

    def __init__(self, random: Random):
        self._random = random

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        """The deepest."""
        depth = max(candidate.held for candidate in candidates)
        deepest = [candidate for candidate in candidates if candidate.held == depth]
        best = _top(deepest, lambda candidate: (-candidate.load, candidate.device))
        reason = Reason.DEEPEST_HIT if len(deepest) == 1 else Reason.EQUAL_HITS
        return Choice(self._random.choice(best).replica, reason if depth else Reason.NO_HIT)


@ROUTE_POLICIES.register("least_loaded")
class LeastLoaded:
    """The replica with the fewest requests, whatever it holds; of equals any.

    Use it when prompts have nothing in common, or to see what routing by pages is worth.
    """

    def __init__(self, random: Random):
        self._random = random

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        """The least loaded."""
        best = _top(candidates, lambda candidate: (-candidate.load,))
        return Choice(self._random.choice(best).replica, Reason.LEAST_LOADED)


@ROUTE_POLICIES.register("round_robin")
class RoundRobin:
    """One after the other, whatever they hold and do.

    Use it as the baseline of a measurement: it needs no knowledge at all.
    """

    def __init__(self, random: Random):
        self._last = -1

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        """The next replica by number after the last one chosen."""
        later = (candidate.replica for candidate in candidates if candidate.replica > self._last)
        self._last = next(later, candidates[0].replica)
        return Choice(self._last, Reason.IN_TURN)


def _top(candidates: Sequence[Candidate], value: Callable[[Candidate], tuple[int, ...]]) -> list[Candidate]:
    """Those with the highest value."""
    values = [value(candidate) for candidate in candidates]
    top = max(values)
    return [candidate for candidate, own in zip(candidates, values, strict=True) if own == top]
