"""The rows of the page tree: a page is an integer into columns.

Objects with one attribute per fact cost 726 bytes a page and a garbage-collector pause of 0.4 s at a million pages;
columns cost about 210 bytes and no pause worth the name.
"""

from array import array
from collections.abc import Sequence
from itertools import pairwise

from stratakv.storage.tiers import Component, PageKey, Tier

ROOT = 0
"""The page before every first page. It holds no tokens, is always resident and never leaves."""

NONE = -1
"""No slot, no page."""

Slots = dict[Tier, "array[int]"]


class Columns:
    """Column storage. Rows are reused after `free_row`; nothing here knows the tree's rules.

    parent, first_child, next_sibling, previous_sibling: links. depth: pages from the root (root 0).
    device_children, held_children: children in that set. guard: holds on the page plus children that are guarded.
    keep: holds that only keep the page held. unsaved: 1 if the page itself is on the device without a host copy,
    plus device children that are unsaved. last_use: tick. hits: distinct requests. stored: 1 when the store is known to
    have it. priority: the highest of any request that used it.
    slots[component][tier]: slot number or NONE.
    """

    def __init__(self, components: tuple[Component, ...]):
        self.key: list[PageKey] = []
        self.parent = array("i")
        self.first_child = array("i")
        self.next_sibling = array("i")
        self.previous_sibling = array("i")
        self.depth = array("i")
        self.device_children = array("i")
        self.held_children = array("i")
        self.guard = array("i")
        self.keep = array("i")
        self.unsaved = array("i")
        self.last_use = array("q")
        self.hits = array("i")
        self.stored = array("b")
        self.priority = array("b")
        self.slots: dict[Component, Slots] = {
            component: {tier: array("i") for tier in (Tier.DEVICE, Tier.HOST)} for component in components
        }
        self._zeroed = (
            self.device_children,
            self.held_children,
            self.guard,
            self.keep,
            self.unsaved,
            self.hits,
            self.stored,
            self.priority,
        )
        slot_columns = [column for tiers in self.slots.values() for column in tiers.values()]
        self._unlinked = (self.first_child, self.next_sibling, self.previous_sibling, *slot_columns)
        self._free: list[int] = []
        self._take_rows(1)  # the root
        self.parent[ROOT] = NONE

    def new_rows(self, keys: Sequence[PageKey], parent: int, tick: int) -> list[int]:
        """Rows for pages that follow `parent` one below the other, linked, with one hit each, used at the ticks after
        `tick`. Slots and what the device counts are empty. Mutates every column."""
        rows = self._take_rows(len(keys))
        # The rest of a row that was given back is as empty as it was at first.
        key_of, above_of, depth_of, last_use = self.key, self.parent, self.depth, self.last_use
        hits, stored, priority, following = self.hits, self.stored, self.priority, self.next_sibling
        preceding, depth, above = self.previous_sibling, self.depth[parent], parent
        for row, key in zip(rows, keys, strict=True):
            depth += 1
            tick += 1
            key_of[row], above_of[row], depth_of[row], last_use[row] = key, above, depth, tick
            hits[row] = 1
            stored[row] = priority[row] = 0
            following[row] = preceding[row] = NONE
            above = row
        self.link(rows[0])
        self.held_children[parent] += 1
        for above, row in pairwise(rows):
            self.first_child[above] = row
            self.held_children[above] = 1
        return rows

    def free_row(self, row: int) -> None:
        """Give `row` back for reuse. Its counts are zero, and it has no child and no slot."""
        self.free_rows([row])

    def free_rows(self, rows: Sequence[int]) -> None:
        """Give `rows` back for reuse. Their counts are zero, and they have no children and no slots."""
        for row in rows:
            self.key[row] = b""
        self._free += rows

    def _take_rows(self, count: int) -> list[int]:
        """Empty rows: those that were given back, most recently first, then new ones."""
        fresh = count - len(self._free)
        if fresh > 0:
            end = len(self.key)
            self.key += [b""] * fresh
            for column in (self.parent, self.depth, self.last_use, *self._zeroed):
                column.extend([0] * fresh)
            for column in self._unlinked:
                column.extend([NONE] * fresh)
            self._free[:0] = range(end + fresh - 1, end - 1, -1)
        kept = len(self._free) - count
        rows = self._free[kept:]
        del self._free[kept:]
        rows.reverse()
        return rows

    def link(self, row: int) -> None:
        """Put `row` at the front of its parent's children."""
        parent = self.parent[row]
        head = self.first_child[parent]
        self.next_sibling[row] = head
        if head != NONE:
            self.previous_sibling[head] = row
        self.first_child[parent] = row

    def unlink(self, row: int) -> None:
        """Take `row` out of its parent's children."""
        before, after = self.previous_sibling[row], self.next_sibling[row]
        if before == NONE:
            self.first_child[self.parent[row]] = after
        else:
            self.next_sibling[before] = after
        if after != NONE:
            self.previous_sibling[after] = before

    def children(self, row: int) -> list[int]:
        """The children of `row`, youngest first."""
        found, child = [], self.first_child[row]
        while child != NONE:
            found.append(child)
            child = self.next_sibling[child]
        return found
