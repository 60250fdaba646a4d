"""The ranks of a replica as torch process groups: one for the model's activations, one for progress vectors alone.

Rank 0 opens a key-value store on the loopback (all ranks of a replica are on one machine), through which the others
find each other. Both groups have a finite timeout as a backstop; who is missing is found by the heartbeat.
"""

import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from stratakv.cluster.agreement import Vector

TIMEOUT = timedelta(seconds=60)
"""What a collective may take: a backstop, longer than the heartbeat needs to name who is missing."""

_HOST = "127.0.0.1"


class RankMissing(Exception):
    """A rank did not come to where all must meet, or left the group."""


class _Work(Protocol):
    def wait(self) -> Any: ...


class GlooPending:
    """An all-reduce under way, into `vector`."""

    def __init__(self, work: _Work, vector: Vector):
        self._work, self._vector = work, vector

    def wait(self) -> Vector:
        """The reduced vector. RankMissing when a rank is gone or the timeout has passed."""
        try:
            self._work.wait()
        except RuntimeError as error:
            raise RankMissing(
                f"the ranks of this replica could not agree, one is gone or hangs: {error}"
            ) from error
        return self._vector


class GlooGroup:
    """See Group. `process_group` is a gloo group that carries nothing else."""

    def __init__(self, process_group: dist.ProcessGroup):
        self._group = process_group
        self.rank: int = process_group.rank()
        self.size: int = process_group.size()

    def all_reduce_min(self, vector: Vector) -> GlooPending:
        """Start the elementwise MIN over all ranks, in place. Returns at once."""
        work = dist.all_reduce(torch.from_numpy(vector), dist.ReduceOp.MIN, self._group, async_op=True)
        assert work is not None
        return GlooPending(work, vector)


def open_store() -> TCPStore:
    """Rank 0's store, on a free port of the loopback alone: it lets in whoever can reach it."""
    listener = socket.create_server((_HOST, 0))
    port = listener.getsockname()[1]
    return TCPStore(_HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def connect_store(port: int, deadline: float) -> TCPStore:
    """A client of rank 0's store. RankMissing if it does not answer within `deadline` seconds."""
    try:
        return TCPStore(
            _HOST, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=deadline)
        )
    except RuntimeError as error:
        raise RankMissing(f"the store of rank 0 at port {port} does not answer: {error}") from error


class GlooTeam:
    """See Team: several ranks in process groups. Making one waits for all of them, up to `deadline` seconds.

    `backend` is what torch calls it: `gloo`, or `cpu:gloo,cuda:nccl` when activations are on GPUs. RankMissing names
    the ranks that did not come.
    """

    def __init__(self, store: TCPStore, rank: int, ranks: int, backend: str, deadline: float):
        self.rank, self.ranks = rank, ranks
        self._store = store
        self._deadline = deadline
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo binds whatever the host's name means
        self.meet("start")
        dist.init_process_group(
            backend, store=PrefixStore("ranks", store), rank=rank, world_size=ranks, timeout=TIMEOUT
        )
        self.group = GlooGroup(_new_group(ranks))

    def from_head(self, name: str, make: Callable[[], str]) -> str:
        """See Team. RankMissing if the head does not give it in time."""
        key = f"head/{name}"
        if self.rank == 0:
            value = make()
            self._store.set(key, value)
            return value
        self._wait([key], f"rank 0 did not say its {name}")
        given: bytes = self._store.get(key)
        return given.decode()

    def meet(self, where: str) -> None:
        """Return when all ranks have come to `where`. Each place once, in the same order on all ranks."""
        self._store.set(f"{where}/{self.rank}", "here")
        keys = [f"{where}/{rank}" for rank in range(self.ranks)]
        self._wait(keys, f"not all ranks came to {where!r}")

    def close(self) -> None:
        """See Team. Does not wait for the others."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _wait(self, keys: Sequence[str], trouble: str) -> None:
        try:
            self._store.wait(list(keys), timedelta(seconds=self._deadline))
        except RuntimeError as error:
            missing = ", ".join(key for key in keys if not self._has(key))
            raise RankMissing(f"{trouble} within {self._deadline:g} s (missing: {missing})") from error

    def _has(self, key: str) -> bool:
        try:
            return bool(self._store.check([key]))
        except RuntimeError:  # the store is gone with rank 0
            return False


def _new_group(ranks: int) -> dist.ProcessGroup:
    group = dist.new_group(list(range(ranks)), timeout=TIMEOUT, backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group
