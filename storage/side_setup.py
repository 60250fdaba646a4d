"""Puts the sides of a hierarchy together from its pools. Without pools there are none, and nothing is asked of them."""

from dataclasses import dataclass

from stratakv.storage.checkpoints import Checkpoints
from stratakv.storage.copies import Copies
from stratakv.storage.pools import SlotPool
from stratakv.storage.restore import EXACT, HitPolicy
from stratakv.storage.room import Room
from stratakv.storage.side import Side, SlotBook
from stratakv.storage.side_copies import SideCopies
from stratakv.storage.sides import Sides
from stratakv.storage.tiers import Component
from stratakv.storage.tree import Tree
from stratakv.storage.unified import PlacesInPages
from stratakv.storage.windows import Windows
from stratakv.storage.writes import StoreWrites


@dataclass(frozen=True)
class WindowPools:
    """Slots of the sliding component. `policy` is `trailing(window, page_size)`; `chunk_pages` the most pages that one
    step of a request may touch."""

    policy: HitPolicy
    device: SlotPool
    host: SlotPool
    chunk_pages: int


@dataclass(frozen=True)
class CheckpointPools:
    """Slots of the recurrent component: working `states`, checkpoints on the `device` and on the `host`. A `device`
    pool of None takes checkpoints from the full pages' pool, `pages_each` slots for one."""

    states: SlotPool
    device: SlotPool | None
    host: SlotPool
    pages_each: int = 0


@dataclass(frozen=True)
class SidePools:
    """The pools of all sides of a model. `checkpoint_pages` is the distance of checkpoints within a prompt; 0 for none
    but those at its end and where it branches."""

    windows: WindowPools | None = None
    checkpoints: CheckpointPools | None = None
    checkpoint_pages: int = 0


def set_up(pools: SidePools | None, tree: Tree, room: Room, copies: Copies, writes: StoreWrites) -> Sides:
    """The sides that `pools` make room for."""
    if pools is None:
        return Sides(tree)
    windows = checkpoints = None
    if (made := pools.windows) is not None:
        side = _side(Component.SLIDING, made.policy, made.device, made.host, tree, room)
        moves = SideCopies(tree, side, copies, writes.side_saved)
        windows = Windows(tree, moves, copies, made.chunk_pages)
    if (kept := pools.checkpoints) is not None:
        device: SlotBook = kept.device or PlacesInPages(room, kept.pages_each)
        side = _side(Component.RECURRENT, EXACT, device, kept.host, tree, room)
        if kept.device is None:
            room.share(side, kept.pages_each)
        moves = SideCopies(tree, side, copies, writes.side_saved)
        checkpoints = Checkpoints(tree, moves, copies, kept.states)
    sides = Sides(tree, windows, checkpoints)
    writes.sides.update((side.component, side) for side in sides.all)
    return sides


def _side(
    component: Component, policy: HitPolicy, device: SlotBook, host: SlotPool, tree: Tree, room: Room
) -> Side:
    def changed(page: int, held: bool) -> None:
        tree.log.note_side(component, tree.columns.key[page], held)

    def lost(page: int) -> None:
        room.counts.lost_sides[component] += 1

    return Side(component, policy, device, host, tree.rank, changed, lost)
