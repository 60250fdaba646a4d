"""The same workload over several kinds of replica at the same time, each in a process of its own."""

import multiprocessing
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from stratakv.cluster.replay.multiturn import MultiturnSettings, multiturn
from stratakv.cluster.replay.replica import ReplayError
from stratakv.cluster.replay.report import Report
from stratakv.cluster.replay.run import Advance, run_alone
from stratakv.cluster.replay.settings import ReplicaSettings


def run_side_by_side(
    workload: MultiturnSettings, replicas: Mapping[str, ReplicaSettings], advance: Callable[[str], Advance]
) -> dict[str, Report]:
    """A report for each of `replicas`, by name. `advance(name)` is asked for once each. ReplayError, and none goes on,
    when one cannot."""
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    names: dict[Connection, str] = {}
    reports: dict[str, Report] = {}
    try:
        for name, settings in replicas.items():
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(there, workload, settings), daemon=True)
            process.start()
            there.close()  # so that the end of the process is seen
            processes.append(process)
            names[here] = name
        steps = {name: advance(name) for name in replicas}
        while names:
            for connection in wait(list(names)):
                assert isinstance(connection, Connection)
                report = _received(connection, names[connection])
                if report is None:
                    steps[names[connection]]()
                else:
                    reports[names.pop(connection)] = report
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return {name: reports[name] for name in replicas}


def _received(connection: Connection, name: str) -> Report | None:
    try:
        message = connection.recv()
    except EOFError:
        raise ReplayError(f"the process that replayed {name} has died") from None
    if isinstance(message, ReplayError):
        raise message
    assert message is None or isinstance(message, Report)
    return message


def _run(connection: Connection, workload: MultiturnSettings, settings: ReplicaSettings) -> None:
    """In the process: sends None for each request, and in the end the report or the ReplayError."""
    with suppress(KeyboardInterrupt, BrokenPipeError):  # the one who asked is told, or gone
        try:
            connection.send(run_alone(multiturn(workload), settings, lambda: connection.send(None)))
        except ReplayError as error:
            connection.send(error)
