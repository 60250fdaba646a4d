"""Says what is wrong with a hierarchy, slot by slot: for tests after every step, and for a replica when it is
idle."""

from stratakv.storage.hierarchy import Hierarchy
from stratakv.storage.moves import Direction
from stratakv.storage.pools import Owner, SlotError
from stratakv.storage.sides_check import side_problems
from stratakv.storage.tiers import Component, Tier
from stratakv.storage.tree_check import tree_problems
from stratakv.storage.unified import PlacesInPages


def hierarchy_problems(hierarchy: Hierarchy) -> list[str]:
    """Every broken invariant, as sentences; empty when all is sound.

    Checks the tree, and that for both pools free + tree + requests + in flight = capacity, owner by owner.
    """
    problems = tree_problems(hierarchy.tree) + side_problems(hierarchy)
    for tier, pool in ((Tier.DEVICE, hierarchy.room.device), (Tier.HOST, hierarchy.room.host)):
        try:
            pool.check()
        except SlotError as error:
            problems.append(str(error))
        for owner, expected in _expected_owners(hierarchy, tier).items():
            if pool.count(owner) != expected:
                problems.append(
                    f"{pool.count(owner)} {tier} slots belong to {owner.name}, recomputed {expected}"
                )
    prefetches = hierarchy.prefetches
    holds = len(hierarchy.leases) + len(hierarchy.copies.operations) + hierarchy.writes.pending
    holds += len(prefetches.active) + len(prefetches.kept)
    if hierarchy.tree.holds != holds:
        problems.append(f"{hierarchy.tree.holds} holds are out, {holds} have an owner")
    return problems


def idle_problems(hierarchy: Hierarchy) -> list[str]:
    """As `hierarchy_problems`, and nothing may be leased or in flight: what must hold when no request is there."""
    problems = hierarchy_problems(hierarchy)
    if hierarchy.leases:
        problems.append(f"{len(hierarchy.leases)} leases were never released")
    if hierarchy.prefetches.kept:
        problems.append(f"{len(hierarchy.prefetches.kept)} prefetches are kept for requests that are gone")
    if hierarchy.in_flight or hierarchy.writes.pending:
        problems.append(
            f"{hierarchy.in_flight} operations are in flight, {hierarchy.writes.pending} writes pend"
        )
    return problems


def _expected_owners(hierarchy: Hierarchy, tier: Tier) -> dict[Owner, int]:
    columns = hierarchy.tree.columns
    direction = Direction.LOAD if tier is Tier.DEVICE else Direction.BACKUP
    flying = sum(
        len(operation.targets)
        for operation in hierarchy.copies.operations.values()
        if operation.component is Component.FULL and operation.direction is direction
    )
    resident = sum(slot >= 0 for slot in columns.slots[Component.FULL][tier])
    if tier is Tier.HOST:
        flying += sum(len(prefetch.targets) for prefetch in hierarchy.prefetches.active)
        return {Owner.TREE: resident, Owner.REQUEST: 0, Owner.FLIGHT: flying}
    private = sum(len(lease.slots) - lease.committed for lease in hierarchy.leases)
    checkpoints = hierarchy.sides.checkpoints
    if checkpoints is not None and isinstance(book := checkpoints.side.device.book, PlacesInPages):
        resident += book.pages_each * book.count(Owner.TREE)
        private += book.pages_each * book.count(Owner.REQUEST)
    return {Owner.TREE: resident, Owner.REQUEST: private, Owner.FLIGHT: flying}
