"""The ledger of copies between device and host: numbered, carried out in order by every rank, ended when all agree.

An operation owns its target slots and holds its pages where they are, so no slot is written under a late read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stratakv.storage.holds import Hold
from stratakv.storage.moves import Copy, Direction, Executor, Order, PageStamp
from stratakv.storage.tiers import Component


@dataclass(frozen=True, slots=True)
class Operation:
    """A copy whose end is not agreed yet: `targets` are the slots it owns, `hold` keeps its pages in place, `finish`
    hands the slots on."""

    direction: Direction
    component: Component
    targets: Sequence[int]
    hold: Hold
    finish: Callable[[], None]


class Copies:
    """Orders copies and ends them in the order of their numbers."""

    def __init__(self, executor: Executor):
        self.operations: dict[int, Operation] = {}
        self._executor = executor
        self._ordered = 0
        self._ended = 0

    def order(
        self,
        operation: Operation,
        device: Sequence[int],
        host: Sequence[int],
        stamps: tuple[PageStamp, ...] = (),
    ) -> None:
        """Begin `operation` between the slots `device` and `host`; see `Copy` for how they pair up."""
        self._ordered += 1
        self.operations[self._ordered] = operation
        self._executor.submit(
            Copy(self._ordered, operation.direction, operation.component, tuple(device), tuple(host), stamps)
        )

    def then(self, order: Order) -> None:
        """An order that the device carries out by itself, after the copies so far and before those to come."""
        self._executor.submit(order)

    def absorb(self, upto: int) -> None:
        """End copies 1 .. `upto`, which every rank has finished."""
        for number in range(self._ended + 1, upto + 1):
            operation = self.operations.pop(number)
            operation.finish()
            operation.hold.release()
        self._ended = max(self._ended, upto)
