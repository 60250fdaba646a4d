"""Runs a workload over replicas and reports. Entry points of the command and the tests."""

from collections.abc import Callable, Iterable
from time import perf_counter

from stratakv.cluster.replay.fleet import Fleet
from stratakv.cluster.replay.replica import Replica
from stratakv.cluster.replay.report import Report, Tally
from stratakv.cluster.replay.request import ReplayRequest
from stratakv.cluster.replay.settings import FleetSettings, ReplicaSettings
from stratakv.cluster.replay.shelf import Shelf

Advance = Callable[[], None]
"""Called after each request."""


def run_alone(requests: Iterable[ReplayRequest], settings: ReplicaSettings, advance: Advance) -> Report:
    """One replica serves all, without a router; its store, if it has one, forgets nothing. ReplayError."""
    started = perf_counter()
    replica, tally = Replica(settings, Shelf(None)), Tally(1)
    for request in requests:
        tally.add(request, replica.serve(request), 0)
        replica.hierarchy.tree.log.clear()  # nobody listens
        advance()
    return tally.report(perf_counter() - started)


def run_fleet(
    requests: Iterable[ReplayRequest],
    replica: ReplicaSettings,
    settings: FleetSettings,
    advance: Advance,
) -> Report:
    """Replicas behind a router serve all. ReplayError."""
    started = perf_counter()
    fleet, tally = Fleet(replica, settings), Tally(settings.replicas)
    for request in requests:
        number, usage = fleet.serve(request)
        tally.add(request, usage, number)
        advance()
    return tally.report(perf_counter() - started)
