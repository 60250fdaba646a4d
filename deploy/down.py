"""The end of a cluster: drained if it still answers, then every process, file and note of it removed."""

import shutil
import signal
from pathlib import Path

from stratakv.deploy import ports, processes, records
from stratakv.deploy.errand import Errand, ErrandError, ErrandKind, ask
from stratakv.deploy.narrate import Narrator
from stratakv.deploy.records import ClusterRecord

_CONNECT = 30.0
_REST = 45.0


class DownError(Exception):
    """Something of the cluster could not be ended."""


def take_down(record: ClusterRecord, drain: float, narrator: Narrator) -> None:
    """End a cluster; running answers have `drain` seconds, none if it is 0. Another's Ray is left running.

    Ctrl-C cuts the draining short, the rest is not interrupted. DownError names processes that would not end; the
    cluster's record then stays, so that it can be tried again.
    """
    try:
        narrator.doing("draining" if drain else "ending the actors")
        _stop_actors(record, drain)
    except ErrandError as error:
        narrator.say(f"the cluster could not be drained ({error}); ending its processes")
    except KeyboardInterrupt:
        narrator.say("not waiting for the running answers any longer")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    narrator.doing("ending the processes")
    left = processes.end_all(record)
    shutil.rmtree(record.host_directory, ignore_errors=True)
    if left:
        raise DownError(f"cluster {record.id}: these processes would not end: {', '.join(map(str, left))}")
    shutil.rmtree(record.directory, ignore_errors=True)
    records.remove(record.id)


def _stop_actors(record: ClusterRecord, drain: float) -> None:
    """Ask the supervisor to end all. Nothing to ask if Ray does not run, or never got so far."""
    host, _, port = record.address.rpartition(":")
    if not host or not Path(record.directory).is_dir() or not ports.answers(host, int(port), 2.0):
        return
    ask(Errand(ErrandKind.STOP, record, deadline=drain), _CONNECT + drain + _REST)
