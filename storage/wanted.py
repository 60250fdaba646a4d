"""What to bring from the store for a request: the longest prefix that is worth it, fits, and can be continued from.

The head asks the store about the pages that are not held, and decides here on the answer; nothing is started yet.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stratakv.storage.columns import ROOT
from stratakv.storage.hierarchy import Hierarchy
from stratakv.storage.prefetch import Stretch
from stratakv.storage.restore import ALL_PAGES, Presence, Restorable, Rule, restorable
from stratakv.storage.side import Side
from stratakv.storage.tiers import Component, Miss, PageKey
from stratakv.storage.vote import Boundary

Stored = Mapping[Component, Sequence[bool]]
"""By component, an entry for each page of a history: whether the store has it. False where nobody asked."""


class Wanted(NamedTuple):
    """The decision. `stretch` is what to read below the page `anchor`, None for nothing; then `reason` is why pages
    number `found.held` to `promised - 1`, which the store has, are not brought. `known` pages of full attention, from
    the first on, are here or stored."""

    found: Boundary
    anchor: int
    stretch: Stretch | None
    promised: int
    reason: Miss
    known: int


def first_unknown(hierarchy: Hierarchy, keys: Sequence[PageKey]) -> dict[Component, int]:
    """From which page on, by component, the store must be asked about the history `keys`."""
    found = hierarchy.find(keys)
    firsts = {Component.FULL: found.full}
    for side in hierarchy.sides.all:
        firsts[side.component] = max(0, found.held + 1 - _needed(side))
    return firsts


def choose(
    hierarchy: Hierarchy, keys: Sequence[PageKey], namespace: bytes, stored: Stored, minimum: int
) -> Wanted:
    """Decide with what is held by now and what is `stored`, for a time when no other prefetch is there. Fewer than
    `minimum` pages are not worth the way."""
    found = hierarchy.find(keys)
    path = hierarchy.tree.path(hierarchy.tree.match(keys).page)
    full = _merged([True] * found.full, stored.get(Component.FULL, ()), len(keys))
    held = {
        side.component: _merged([side.held(page) for page in path], stored.get(side.component, ()), len(keys))
        for side in hierarchy.sides.all
    }
    presences = [Presence(side.policy, held[side.component]) for side in hierarchy.sides.all]
    known = next((n for n, there in enumerate(full) if not there), len(full))
    possible = restorable(len(keys), [Presence(ALL_PAGES, full), *presences])
    end = possible.longest_upto(found.full + hierarchy.prefetches.limit)
    anchor = path[-1] if path else ROOT
    if end - found.held < minimum:
        promised, reason = _why_not(possible, known, found, minimum, hierarchy.sides.all)
        return Wanted(found, anchor, None, promised, reason, known)
    sides = {}
    for side in hierarchy.sides.all:
        window = range(max(0, end - _needed(side)), end)
        lacking = [n for n in window if n >= len(path) or not side.held(path[n])]
        if lacking:
            sides[side.component] = lacking
    stretch = Stretch(keys, found.full, max(end, found.full), namespace, sides)
    return Wanted(found, anchor, stretch, end, Miss.NOT_DELIVERED, known)


def _why_not(
    possible: Restorable, known: int, found: Boundary, minimum: int, sides: Sequence[Side]
) -> tuple[int, Miss]:
    """Up to which page the store could have helped, and why it does not."""
    if possible.longest - found.held >= minimum:
        return possible.longest, Miss.NO_STORE_ROOM
    if known - found.held >= minimum and known > found.full and sides:
        checkpoint = any(side.component is Component.RECURRENT for side in sides)
        return known, Miss.CHECKPOINT_MISSING if checkpoint else Miss.WINDOW_MISSING
    return max(possible.longest, found.held), Miss.BELOW_THRESHOLD


def _needed(side: Side) -> int:
    """Pages before a boundary that `side` must have there."""
    return side.policy.pages if side.policy.rule is Rule.TRAILING else 1


def _merged(here: Sequence[bool], stored: Sequence[bool], length: int) -> list[bool]:
    """Which pages are here or stored."""
    merged = [*here, *[False] * (length - len(here))][:length]
    return [a or (n < len(stored) and bool(stored[n])) for n, a in enumerate(merged)]
