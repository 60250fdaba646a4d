"""Which pages a store gives up for room. Pure; every store that collects its own garbage asks here.

A history is of use as far as it reaches without a gap. So a page counts as used when the latest of its stored
descendants was, and of pages used at the same time the deepest goes first: a parent never goes before its child.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Resident(NamedTuple):
    """A stored page with all its components and groups: the name of its parent (of no page at the root), its depth in
    pages, its own last use (any unit), its bytes."""

    parent: bytes
    depth: int
    used: int
    size: int


def victims(pages: Mapping[bytes, Resident], size: int) -> list[bytes]:
    """The pages that leave to free `size` bytes or more, in the order in which they go; all if that is not enough.

    The same for the same pages, whoever asks: where several processes collect one store, no more is lost for it.
    """
    order = collection_order(pages)
    freed = 0
    for count, name in enumerate(order):
        if freed >= size:
            return order[:count]
        freed += pages[name].size
    return order


def collection_order(pages: Mapping[bytes, Resident]) -> list[bytes]:
    """All pages, the first to go first: by effective last use, then the deepest."""
    effective = {name: page.used for name, page in pages.items()}
    for name in sorted(pages, key=lambda name: -pages[name].depth):
        parent = pages[name].parent
        if parent in effective:
            effective[parent] = max(effective[parent], effective[name])
    return sorted(pages, key=lambda name: (effective[name], -pages[name].depth, name))


def count_orphans(pages: Mapping[bytes, Resident]) -> int:
    """Pages below the first of their history whose parent is not stored."""
    return sum(page.depth > 1 and page.parent not in pages for page in pages.values())
