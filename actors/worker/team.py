"""What a rank has of the other ranks of its replica, from the start of its worker to its end.

A replica of one rank is `Alone`: the same code, with nobody to wait for. `gloo.py` has the team of several.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from stratakv.actors.worker.rank import StepResult
from stratakv.cluster.agreement import Group, LocalGroup
from stratakv.cluster.plan import Plan


class Executes(Protocol):
    """What carries plans out: a `Rank`, or a `Leader` that has all other ranks do the same."""

    def execute(self, plan: Plan) -> StepResult:
        """Carry out `plan`; called in order of their numbers, by one thread."""


class Team(Protocol):
    """All ranks of one generation of a replica. Called by the thread that starts the worker."""

    @property
    def rank(self) -> int:
        """This rank, 0 .. ranks - 1; 0 is the head."""

    @property
    def ranks(self) -> int:
        """How many there are."""

    @property
    def group(self) -> Group:
        """The collective that carries progress vectors."""

    def from_head(self, name: str, make: Callable[[], str]) -> str:
        """What `make` gives on rank 0, on every rank. Only rank 0 calls it, the others wait for it."""

    def close(self) -> None:
        """Leave. May be called more than once."""


class Alone:
    """The only rank of its replica."""

    rank = 0
    ranks = 1

    def __init__(self) -> None:
        self.group: Group = LocalGroup()

    def from_head(self, name: str, make: Callable[[], str]) -> str:
        """See Team."""
        return make()

    def close(self) -> None:
        """See Team."""


def agree(group: Group, *numbers: int) -> list[int]:
    """The MIN of each number over all ranks: capacities that the head may count on everywhere. A collective."""
    return [int(number) for number in group.all_reduce_min(np.array(numbers, dtype=np.int64)).wait()]
