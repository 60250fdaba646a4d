"""The recurrent component of running requests: a working slot each, and checkpoints where a history may be taken up.

A recurrent state is overwritten with every token, so what is worth keeping must be saved in passing: a snapshot when
the computation stands exactly at a page boundary. Reuse copies a checkpoint into a working slot; none is ever written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from stratakv.storage.copies import Copies, Operation
from stratakv.storage.holds import HoldKind
from stratakv.storage.moves import Direction, Restore, Snapshot
from stratakv.storage.pools import Owner, SlotPool
from stratakv.storage.side_copies import SideCopies
from stratakv.storage.tiers import Tier
from stratakv.storage.tree import Tree


@dataclass(eq=False, slots=True)
class StateLease:
    """A request's working slot, and the snapshots it has taken, by the number of pages before each: one in `marked`
    enters the tree with its page, the one in `passing` (at most one, the latest) when the request ends."""

    state: int
    marked: dict[int, int] = field(default_factory=dict)
    passing: dict[int, int] = field(default_factory=dict)
    loading: bool = False
    closed: bool = False


class Checkpoints:
    """Gives requests their working slots and keeps their checkpoints. `states` are the working slots."""

    def __init__(self, tree: Tree, moves: SideCopies, copies: Copies, states: SlotPool):
        self.moves = moves
        self.side = moves.side
        self.states = states
        self.leases: set[StateLease] = set()
        self.orphans: set[StateLease] = set()
        """Closed leases whose working slot is still the target of a load."""
        self.skipped = 0
        """Snapshots that were wanted and not taken, for want of room."""
        self._tree = tree
        self._copies = copies

    def fits(self) -> bool:
        """Whether there is a working slot for one more request."""
        return self.states.free > 0

    def open(self, path: Sequence[int]) -> StateLease:
        """A lease that goes on after `path`, from its checkpoint there. The caller has asked `fits`."""
        taken = self.states.take(1, Owner.REQUEST)
        assert taken is not None
        lease = StateLease(taken[0])
        self.leases.add(lease)
        if path:
            self._recall(lease, path[-1])
        return lease

    def snapshot(self, lease: StateLease, count: int, marked: bool) -> None:
        """The state of `lease` is that after exactly `count` pages: save it. A mark is wanted for good; any other only
        until the next."""
        slots = list(lease.passing.values()) or self.side.take(Tier.DEVICE, 1, Owner.REQUEST)
        lease.passing.clear()
        if not slots:
            self.skipped += 1
            return
        (lease.marked if marked else lease.passing)[count] = slots[0]
        self._copies.then(Snapshot(lease.state, self.side.device.book.places(slots[0])))

    def shed(self, lease: StateLease) -> bool:
        """Let the snapshots go that `lease` has taken and that are in no tree yet. False when there are none."""
        slots = [*lease.marked.values(), *lease.passing.values()]
        lease.marked.clear()
        lease.passing.clear()
        self.side.device.book.give(slots, Owner.REQUEST)
        self.skipped += len(slots)
        return bool(slots)

    def enter(self, lease: StateLease, count: int, page: int) -> bool:
        """The page `page`, number `count` of the history counted from 1, is in the tree: its snapshot enters with it.
        Whether there was one."""
        if count not in lease.marked:
            return False
        self._attach(page, lease.marked.pop(count))
        return True

    def close(self, lease: StateLease, committed: int, tip: int) -> int | None:
        """The request is done, with `committed` pages in the tree down to `tip`. Its last snapshot in passing enters
        the tree; returns the page it is on, if there is one."""
        kept = None
        for count, slot in lease.passing.items():
            kept = tip
            for _ in range(committed - count):
                kept = self._tree.columns.parent[kept]
            self._attach(kept, slot)
        self.side.device.book.give(list(lease.marked.values()), Owner.REQUEST)
        self.leases.remove(lease)
        lease.closed = True
        if lease.loading:
            self.orphans.add(lease)
        else:
            self.states.give([lease.state], Owner.REQUEST)
        return kept

    def _attach(self, page: int, slot: int) -> None:
        if page in self.side.device.slots:
            self.side.device.book.give([slot], Owner.REQUEST)
            self.side.touch(page, self._tree.tick)
            return
        self.side.device.book.move([slot], Owner.REQUEST, Owner.TREE)
        self.side.place(page, Tier.DEVICE, slot, self._tree.tick)

    def _recall(self, lease: StateLease, page: int) -> None:
        side = self.side
        side.touch(page, self._tree.tick)
        if page in side.device.slots:
            self._copies.then(Restore(side.device.book.places(side.device.slots[page]), lease.state))
            return
        lease.loading = True
        side.guard(page, Tier.HOST)
        hold = self._tree.hold(page, HoldKind.HELD)
        operation = Operation(Direction.LOAD, side.component, [], hold, partial(self._end_load, lease, page))
        self._copies.order(operation, [lease.state], [side.host.slots[page]])

    def _end_load(self, lease: StateLease, page: int) -> None:
        lease.loading = False
        self.side.unguard(page, Tier.HOST)
        self.moves.loaded += 1
        if lease.closed:
            self.orphans.remove(lease)
            self.states.give([lease.state], Owner.REQUEST)
