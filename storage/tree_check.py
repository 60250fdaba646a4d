"""Recomputes from nothing what the page tree keeps by increments, and names every difference. For tests and the
idle check."""

from stratakv.storage.columns import NONE, ROOT
from stratakv.storage.tiers import Component, Tier
from stratakv.storage.tree import Tree


def tree_problems(tree: Tree) -> list[str]:
    """Every broken invariant of `tree`, as sentences; empty when it is sound. O(pages), changes nothing."""
    pages = {page for page in range(1, len(tree.columns.key)) if tree.columns.key[page]}
    return [
        *_structure(tree, pages),
        *_closed_sets(tree, pages),
        *_counts(tree, pages),
        *_queues(tree, pages),
    ]


def _structure(tree: Tree, pages: set[int]) -> list[str]:
    columns, problems = tree.columns, []
    if {tree.find(columns.key[page]) for page in pages} != pages or len(tree) != len(pages):
        problems.append("the index and the rows disagree about which pages exist")
    for page in pages:
        parent = columns.parent[page]
        if parent != ROOT and parent not in pages:
            problems.append(f"page {page} hangs below {parent}, which is gone")
        elif columns.depth[page] != columns.depth[parent] + 1:
            problems.append(
                f"page {page} has depth {columns.depth[page]} below depth {columns.depth[parent]}"
            )
        if page not in columns.children(parent):
            problems.append(f"page {page} is missing from the children of {parent}")
        if parent != ROOT and columns.hits[page] > columns.hits[parent]:
            problems.append(f"page {page} has more hits than its parent {parent}")
    return problems


def _closed_sets(tree: Tree, pages: set[int]) -> list[str]:
    columns, problems = tree.columns, []
    device, host = (columns.slots[Component.FULL][tier] for tier in (Tier.DEVICE, Tier.HOST))
    for page in pages:
        parent = columns.parent[page]
        if device[page] == NONE and host[page] == NONE:
            problems.append(f"page {page} is in the tree but in no tier")
        if device[page] != NONE and parent != ROOT and device[parent] == NONE:
            problems.append(f"page {page} is on the device, its parent {parent} is not")
    return problems


def _counts(tree: Tree, pages: set[int]) -> list[str]:
    columns, problems = tree.columns, []
    device, host = (columns.slots[Component.FULL][tier] for tier in (Tier.DEVICE, Tier.HOST))
    freeable = stuck = 0
    for page in pages:
        children = columns.children(page)
        on_device = [child for child in children if device[child] != NONE]
        own_unsaved = tree.has_host and device[page] != NONE and host[page] == NONE
        expected = {
            "device_children": len(on_device),
            "held_children": len(children),
            "unsaved": own_unsaved + sum(columns.unsaved[child] > 0 for child in on_device),
        }
        actual = {
            "device_children": columns.device_children[page],
            "held_children": columns.held_children[page],
            "unsaved": columns.unsaved[page],
        }
        if expected != actual:
            problems.append(f"page {page} counts {actual}, recomputed {expected}")
        if columns.guard[page] < sum(columns.guard[child] > 0 for child in children):
            problems.append(f"page {page} is guarded less than its children")
        unguarded = device[page] != NONE and not columns.guard[page]
        freeable += unguarded and not columns.unsaved[page]
        stuck += unguarded and columns.unsaved[page] > 0
    if (freeable, stuck) != (tree.freeable, tree.stuck):
        problems.append(f"freeable, stuck are {tree.freeable}, {tree.stuck}, recomputed {freeable}, {stuck}")
    return problems


def _queues(tree: Tree, pages: set[int]) -> list[str]:
    columns, problems = tree.columns, []
    device = columns.slots[Component.FULL][Tier.DEVICE]
    leaves = {
        p for p in pages if device[p] != NONE and not columns.guard[p] and not columns.device_children[p]
    }
    host_leaves = {
        p
        for p in pages
        if device[p] == NONE and not (columns.guard[p] or columns.keep[p] or columns.held_children[p])
    }
    for name, queue, expected in (
        ("clean leaves", tree.clean_leaves, {p for p in leaves if not columns.unsaved[p]}),
        ("unsaved leaves", tree.unsaved_leaves, {p for p in leaves if columns.unsaved[p]}),
        ("host leaves", tree.host_leaves, host_leaves),
    ):
        if queue.pages() != expected:
            problems.append(f"{name} are {sorted(queue.pages())}, recomputed {sorted(expected)}")
    return problems
