"""The rows of the page tree: a page is an integer into columns.

Objects with one attribute per fact cost 726 bytes a page and a garbage-collector pause of 0.4 s at a million pages;
columns cost about 210 bytes and no pause worth the name.
"""

from array import array

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

    def new_row(self, key: PageKey, parent: int, depth: int) -> int:
        """A row with empty links, counts and slots. Mutates every column."""
        if self._free:
            row = self._free.pop()
            self.key[row], self.parent[row], self.depth[row], self.last_use[row] = key, parent, depth, 0
            for column in self._zeroed:
                column[row] = 0
            for column in self._unlinked:
                column[row] = NONE
            return row
        self.key.append(key)
        self.parent.append(parent)
        self.depth.append(depth)
        self.last_use.append(0)
        for column in self._zeroed:
            column.append(0)
        for column in self._unlinked:
            column.append(NONE)
        return len(self.key) - 1

    def free_row(self, row: int) -> None:
        """Give `row` back for reuse."""
        self.key[row] = b""
        self._free.append(row)

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
