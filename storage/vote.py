"""The vote on how much of a history can be continued from, when a page has several kinds of state.

`full` KV is held for a prefix, found by bisection; each side then moves the boundary back to the deepest page that it
accepts too, and looks only at pages that can still move it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from stratakv.storage.restore import Rule
from stratakv.storage.side import Side
from stratakv.storage.tiers import Component, Miss
from stratakv.storage.tree import Tree

_MISSING = {Component.SLIDING: Miss.WINDOW_MISSING, Component.RECURRENT: Miss.CHECKPOINT_MISSING}


class Boundary(NamedTuple):
    """What is here of a history, in pages from its start.

    `path` are the pages that can be used, the first `device` of them on the device; `full` is how far KV of full
    attention goes, beyond the path if a side is missing; `reason` says which.
    """

    path: list[int]
    device: int
    full: int
    reason: Miss | None

    @property
    def held(self) -> int:
        """Pages that can be used."""
        return len(self.path)


def find_boundary(tree: Tree, sides: Sequence[Side], keys: Sequence[bytes]) -> Boundary:
    """The deepest boundary of `keys` that the tree and every one of `sides` accept. Changes nothing."""
    match = tree.match(keys)
    path = tree.path(match.page)
    upto, reason = len(path), None
    settled = not sides
    while upto and not settled:
        settled = True
        for side in sides:
            accepted = _furthest(side, path, upto)
            if accepted < upto:
                upto, reason, settled = accepted, _MISSING[side.component], False
    return Boundary(path[:upto], min(match.device, upto), match.held, reason)


def _furthest(side: Side, path: Sequence[int], upto: int) -> int:
    """The longest prefix of `path`, no more than `upto` pages, that `side` accepts."""
    needed = side.policy.pages if side.policy.rule is Rule.TRAILING else 1
    low = upto
    while upto - low < min(needed, upto):
        low -= 1
        if not side.held(path[low]):
            upto = low
    return upto
