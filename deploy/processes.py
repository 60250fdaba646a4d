"""The processes of a cluster: found by what they carry, never by name, and ended for certain.

Everything we start has STRATAKV_CLUSTER in its environment. Some of Ray's processes overwrite theirs with a
title; those are known by being in the Unix session of our Ray and in the cluster's own folder.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stratakv.deploy.records import ClusterRecord

MARK = "STRATAKV_CLUSTER"
_TERM_DEADLINE = 3.0
_KILL_DEADLINE = 10.0


def of_cluster(record: ClusterRecord) -> list[int]:
    """Pids of all processes of a cluster on this machine, without our own."""
    return [pid for pid in _pids() if pid != os.getpid() and _belongs(pid, record)]


def end_all(record: ClusterRecord) -> list[int]:
    """End all processes of a cluster: politely, then for certain. Returns those left, none as a rule."""
    left = of_cluster(record)
    for how, deadline in ((signal.SIGTERM, _TERM_DEADLINE), (signal.SIGKILL, _KILL_DEADLINE)):
        until = time.monotonic() + deadline
        told: set[int] = set()
        while left and time.monotonic() < until:
            for pid in set(left) - told:  # new ones may appear while the old ones end
                told.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, how)
            time.sleep(0.05)
            left = of_cluster(record)
    return left


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def _belongs(pid: int, record: ClusterRecord) -> bool:
    """Whether it is the cluster's and still runs. A process that ends while we look, or is not ours to read, is not."""
    process = Path(f"/proc/{pid}")
    try:
        if f"{MARK}={record.id}".encode() in (process / "environ").read_bytes().split(b"\0"):
            return True
        return os.getsid(pid) == record.session and os.readlink(process / "cwd") == record.directory
    except OSError:
        return False
