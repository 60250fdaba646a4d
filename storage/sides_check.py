"""Says what is wrong with the sides of a hierarchy: their slots, guards and queues, recounted from nothing."""

from collections.abc import Iterator

from stratakv.storage.columns import NONE
from stratakv.storage.hierarchy import Hierarchy
from stratakv.storage.moves import Direction
from stratakv.storage.pools import Owner, SlotPool
from stratakv.storage.side import Side
from stratakv.storage.tiers import Component, Tier


def side_problems(hierarchy: Hierarchy) -> list[str]:
    """Every broken invariant of the sides, as sentences. O(pages), changes nothing."""
    problems = [problem for side in hierarchy.sides.all for problem in _of_side(hierarchy, side)]
    windows, checkpoints = hierarchy.sides.windows, hierarchy.sides.checkpoints
    if windows is not None:
        problems += [
            f"a request has {len(lease.slots)} window slots, its quota is {lease.quota}"
            for lease in windows.leases
            if len(lease.slots) > lease.quota
        ]
    if checkpoints is not None:
        states = len(checkpoints.leases) + len(checkpoints.orphans)
        if checkpoints.states.count(Owner.REQUEST) != states:
            problems.append(
                f"{checkpoints.states.count(Owner.REQUEST)} working slots are out, {states} have an owner"
            )
    return problems


def _of_side(hierarchy: Hierarchy, side: Side) -> Iterator[str]:
    tree = hierarchy.tree
    for page in side.device.slots.keys() | side.host.slots.keys():
        if page >= len(tree.columns.key) or not tree.columns.key[page]:
            yield f"the {side.component} side of page {page} outlived it"
    on_device = tree.columns.slots[Component.FULL][Tier.DEVICE]
    for page in side.device.slots:
        if on_device[page] == NONE and not hierarchy.pages.arriving(page):
            yield f"the {side.component} side of page {page} is on the device, the page is not"
    for tier, here in ((Tier.DEVICE, side.device), (Tier.HOST, side.host)):
        expected = _owners(hierarchy, side, tier)
        for owner, count in expected.items():
            if here.book.count(owner) != count:
                yield (
                    f"{here.book.count(owner)} {side.component} slots on the {tier} belong to {owner.name}, "
                    f"recomputed {count}"
                )
        guards = _guards(hierarchy, side, tier)
        if sum(here.guards.values()) != guards:
            yield f"{sum(here.guards.values())} guards on {side.component} on the {tier}, recomputed {guards}"
        free_to_go = {page for page in here.slots if page not in here.guards}
        if here.first.pages() | here.last.pages() != free_to_go or here.first.pages() & here.last.pages():
            yield f"the {side.component} queues of the {tier} are not what may leave"
        if isinstance(here.book, SlotPool):
            here.book.check()


def _owners(hierarchy: Hierarchy, side: Side, tier: Tier) -> dict[Owner, int]:
    direction = Direction.LOAD if tier is Tier.DEVICE else Direction.BACKUP
    flying = sum(
        len(operation.targets)
        for operation in hierarchy.copies.operations.values()
        if operation.component is side.component and operation.direction is direction
    )
    here = side.device if tier is Tier.DEVICE else side.host
    if tier is Tier.HOST:
        flying += sum(len(p.side_targets.get(side.component, ())) for p in hierarchy.prefetches.active)
    requests = _request_slots(hierarchy, side) if tier is Tier.DEVICE else 0
    return {Owner.TREE: len(here.slots), Owner.REQUEST: requests, Owner.FLIGHT: flying}


def _request_slots(hierarchy: Hierarchy, side: Side) -> int:
    windows, checkpoints = hierarchy.sides.windows, hierarchy.sides.checkpoints
    if windows is not None and windows.side is side:
        return sum(len(lease.slots) - len(lease.shared) for lease in windows.leases)
    assert checkpoints is not None
    return sum(len(lease.marked) + len(lease.passing) for lease in checkpoints.leases)


def _guards(hierarchy: Hierarchy, side: Side, tier: Tier) -> int:
    windows, checkpoints = hierarchy.sides.windows, hierarchy.sides.checkpoints
    if tier is Tier.DEVICE:
        shared = sum(len(lease.shared) for lease in windows.leases) if windows is not None else 0
        return len(side.saving) + (shared if windows is not None and windows.side is side else 0)
    loading = 0
    if windows is not None and windows.side is side:
        loading = windows.arriving
    elif checkpoints is not None:
        loading = sum(lease.loading for lease in checkpoints.leases | checkpoints.orphans)
    kept = sum(guarded is side for prefetch in hierarchy.prefetches.kept for guarded, _ in prefetch.guarded)
    return loading + kept + hierarchy.writes.pending_of(side.component)
