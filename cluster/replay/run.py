"""Runs a workload over replicas and reports. Entry points of the command and the tests."""

from collections.abc import Callable, Iterable
from time import perf_counter

from stratakv.cluster.replay.fleet import Fleet
from stratakv.cluster.replay.replica import Replica
from stratakv.cluster.replay.report import Report, Tally
from stratakv.cluster.replay.request import ReplayRequest
from stratakv.cluster.replay.settings import PaceSettings, ReplicaSettings
from stratakv.cluster.replay.shelf import Shelf

Advance = Callable[[], None]
"""Called after each request."""


def run_alone(requests: Iterable[ReplayRequest], settings: ReplicaSettings, advance: Advance) -> Report:
    """One replica serves all, without a router; its store, if it has one, forgets nothing. ReplayError."""
    started = perf_counter()
    replica, tally = Replica(settings, Shelf(None)), Tally(1)
    for request in requests:
        tally.add(request, replica.serve(request), 0)
        replica.hierarchy.tree.log.drain()  # nobody listens
        advance()
    return tally.report(perf_counter() - started)


def run_fleet(
    requests: Iterable[ReplayRequest],
    replicas: int,
    settings: ReplicaSettings,
    store_pages: int | None,
    policy: str,
    pace: PaceSettings,
    seed: int,
    advance: Advance,
) -> Report:
    """`replicas` replicas behind a router with `policy` share a store of `store_pages` pages (None: any number).
    ReplayError, UnknownName."""
    started = perf_counter()
    fleet, tally = Fleet(replicas, settings, Shelf(store_pages), policy, pace, seed), Tally(replicas)
    for request in requests:
        replica, usage = fleet.serve(request)
        tally.add(request, usage, replica)
        advance()
    return tally.report(perf_counter() - started)
