"""Locks on pages: what keeps a page, and all before it, where somebody reads or writes it."""

from collections.abc import Callable
from enum import StrEnum


class TreeError(Exception):
    """The caller asked for something that would break an invariant: a fault in the program, never in its input."""


class HoldKind(StrEnum):
    """What a hold keeps: the page and all before it on the device, or merely somewhere on this replica."""

    DEVICE = "device"
    HELD = "held"


class Hold:
    """A lock on one page that remembers what it locked. Release it exactly once."""

    __slots__ = ("_undo", "kind", "page")

    def __init__(self, page: int, kind: HoldKind, undo: Callable[[int, HoldKind], None]):
        self._undo: Callable[[int, HoldKind], None] | None = undo
        self.page = page
        self.kind = kind

    def release(self) -> None:
        """Undo the lock. TreeError when it was released before."""
        if self._undo is None:
            raise TreeError(f"a {self.kind} hold on page {self.page} was released twice")
        undo, self._undo = self._undo, None
        undo(self.page, self.kind)
