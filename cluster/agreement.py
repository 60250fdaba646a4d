"""Rank agreement: how the ranks of a replica find out what all of them have finished, by one MIN per plan.

Each rank keeps a `SlotTable`, changed by the plans it applies and by its I/O threads. Per plan it fills one
progress vector from the table and gives it to `Group.all_reduce_min`; the head reads the result as `Agreed`
and commits what every rank has. MIN is the only operation: what must be true of all ranks is stored as it is,
what is true as soon as one rank says so is stored negated.
"""

import threading
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stratakv.storage.moves import PREFETCH_SLOTS, WRITE_SLOTS, Area, SlotProgress

Vector = npt.NDArray[np.int64]
"""The progress vector, shape [VECTOR_LENGTH]."""

_HEADER = 3  # plan number, its negation, copied_upto
VECTOR_LENGTH = _HEADER + 3 * (PREFETCH_SLOTS + WRITE_SLOTS)

_SLOTS = {Area.PREFETCH: PREFETCH_SLOTS, Area.WRITE: WRITE_SLOTS}
# Where an area's fields start: done of all its slots, then -ended of all, then drained of all.
_OFFSET = {Area.PREFETCH: _HEADER, Area.WRITE: _HEADER + 3 * PREFETCH_SLOTS}


def _fields(area: Area, slot: int) -> slice:
    """Where done, -ended and drained of a slot are in the vector."""
    first = _OFFSET[area] + slot
    return slice(first, first + 3 * _SLOTS[area], _SLOTS[area])


class Divergence(Exception):
    """The ranks are at different plans: nothing they say can be combined, and the generation must end."""

    def __init__(self, expected: int, lowest: int, highest: int):
        super().__init__(
            f"the ranks of this replica diverged: plan {expected} was read, but their vectors are of plans "
            f"{lowest} to {highest}; this generation cannot go on and must be replaced"
        )
        self.expected, self.lowest, self.highest = expected, lowest, highest


class Operation:
    """One occupant of a slot on this rank, as its I/O threads see it. Thread-safe.

    It reports into its slot only until the slot is released; what a late thread reports after that is
    ignored, so a next occupant never inherits an old value.
    """

    def __init__(self, table: "SlotTable", area: Area, slot: int):
        self._table, self._area, self._slot = table, area, slot
        self._cut = False

    @property
    def cut(self) -> bool:
        """Whether a plan has cut this operation: issue no new read or write for it."""
        return self._cut

    def advance(self, done: int) -> None:
        """The first `done` pages are landed (read and verified) or written. Never goes back (ValueError)."""
        self._table._advance(self, done)

    def end(self) -> None:
        """This rank will add no page to what it has done."""
        self._table._end(self)

    def drain(self) -> None:
        """Nothing of it is queued or running here any more. RuntimeError before it has ended or been cut."""
        self._table._drain(self)


class SlotTable:
    """What one rank has done in each slot. Plans start, cut and release slots; I/O threads report progress.

    Holds the vector's slot fields ready to be copied out. All methods are thread-safe.
    """

    def __init__(self) -> None:
        self._vector: Vector = np.zeros(VECTOR_LENGTH, dtype=np.int64)
        self._occupants: dict[tuple[Area, int], Operation] = {}
        self._lock = threading.Lock()

    def start(self, area: Area, slot: int) -> Operation:
        """Occupy `slot`: done 0, ended 0, drained 0. ValueError if it is taken or does not exist."""
        if not 0 <= slot < _SLOTS[area]:
            raise ValueError(f"{area} slot {slot} does not exist; there are {_SLOTS[area]}")
        with self._lock:
            if (area, slot) in self._occupants:
                raise ValueError(f"{area} slot {slot} is started but was never released")
            operation = self._occupants[area, slot] = Operation(self, area, slot)
        return operation

    def cut(self, area: Area, slot: int) -> None:
        """Tell the occupant to issue nothing new. It may then drain without having ended. KeyError if it is free."""
        with self._lock:
            self._occupants[area, slot]._cut = True

    def release(self, area: Area, slot: int) -> None:
        """Free `slot`; its old occupant can no longer report. KeyError if it is free."""
        with self._lock:
            del self._occupants[area, slot]
            self._vector[_fields(area, slot)] = 0  # what the next occupant starts from

    def occupied(self) -> list[str]:
        """A line for each slot that has an occupant. None has in an idle replica."""
        with self._lock:
            return [f"{area} slot {slot} was never released" for area, slot in sorted(self._occupants)]

    def fill(self, plan_number: int, copied_upto: int) -> Vector:
        """A new progress vector of this rank for plan `plan_number`; copies 1 .. `copied_upto` have finished here."""
        with self._lock:
            vector = self._vector.copy()
        vector[:_HEADER] = plan_number, -plan_number, copied_upto
        return vector

    def _field(self, operation: Operation, field: int) -> int:
        return _OFFSET[operation._area] + field * _SLOTS[operation._area] + operation._slot

    def _owns(self, operation: Operation) -> bool:
        return self._occupants.get((operation._area, operation._slot)) is operation

    def _advance(self, operation: Operation, done: int) -> None:
        with self._lock:
            if not self._owns(operation):
                return
            before = self._vector[self._field(operation, 0)]
            if done < before:
                raise ValueError(f"progress went back from {before} to {done} pages; a prefix only grows")
            if done > before and self._vector[self._field(operation, 1)]:
                raise ValueError(f"{done} pages reported by an operation that ended at {before}")
            self._vector[self._field(operation, 0)] = done

    def _end(self, operation: Operation) -> None:
        with self._lock:
            if self._owns(operation):
                self._vector[self._field(operation, 1)] = -1

    def _drain(self, operation: Operation) -> None:
        with self._lock:
            if not self._owns(operation):
                return
            if not operation.cut and not self._vector[self._field(operation, 1)]:
                raise RuntimeError("an operation was drained before it ended or was cut")
            self._vector[self._field(operation, 2)] = 1


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks have done, read from the MIN of their vectors of plan `plan_number`."""

    plan_number: int
    copied_upto: int
    _vector: Vector

    def slot(self, area: Area, slot: int) -> SlotProgress:
        """The agreed progress of `slot`. IndexError if it does not exist."""
        if not 0 <= slot < _SLOTS[area]:
            raise IndexError(f"{area} slot {slot} does not exist; there are {_SLOTS[area]}")
        done, not_ended, drained = self._vector[_fields(area, slot)].tolist()
        return SlotProgress(done, not_ended < 0, drained > 0)


def read(vector: Vector, plan_number: int) -> Agreed:
    """Read the MIN of all ranks' vectors of plan `plan_number`. Raises Divergence if any rank was at another plan."""
    lowest, highest = int(vector[0]), -int(vector[1])
    if not lowest == highest == plan_number:
        raise Divergence(plan_number, lowest, highest)
    return Agreed(plan_number, int(vector[2]), vector)


class Pending(Protocol):
    """An all-reduce under way."""

    def wait(self) -> Vector:
        """The reduced vector. Raises when a rank is gone or the group's timeout passes."""


class Group(Protocol):
    """The ranks of a replica, as a collective of their own: it carries progress vectors and nothing else."""

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def all_reduce_min(self, vector: Vector) -> Pending:
        """Start the elementwise MIN over all ranks. Owns `vector` from now on and may change it."""


class LocalPending:
    """The reduction of one rank with itself."""

    def __init__(self, vector: Vector):
        self._vector = vector

    def wait(self) -> Vector:
        """The vector, at once."""
        return self._vector


class LocalGroup:
    """The group of a replica that has one rank: the same code path with nobody to wait for."""

    rank = 0
    size = 1

    def all_reduce_min(self, vector: Vector) -> LocalPending:
        """The MIN of `vector` alone."""
        return LocalPending(vector)
