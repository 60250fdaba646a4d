"""The heart: match, admit, prefetch, load, commit, back up, evict, as plain code over the tree, the slots and an
executor.

The head of a replica owns one. It decides over what has been agreed so far; the executor carries the copies out and
reports. The worker's executor moves tensors, the replay's moves nothing, the property test's is late and slow.

Who owns a slot: the tree (a resident page), a request (a page it is filling), or an operation in flight (the
target of a copy). Sources of a copy are held until it has ended, so no slot is written under a late read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from stratakv.storage.columns import ROOT
from stratakv.storage.copies import Copies
from stratakv.storage.moves import Executor
from stratakv.storage.policies.write import WritePolicy
from stratakv.storage.pools import Owner, SlotPool
from stratakv.storage.prefetch import Prefetches
from stratakv.storage.room import Room
from stratakv.storage.tiers import Miss, PageKey, Tier
from stratakv.storage.tree import Hold, HoldKind, Tree
from stratakv.storage.writes import StoreWrites


@dataclass(eq=False, slots=True)
class Lease:
    """A request's place on the device.

    `slots` are the device slots of its pages in order. The first `committed` pages are in the tree, ending at
    `tip`, and held; the rest is private to the request. `full` are keys of computed pages that wait to enter the
    tree, because the load of the page before them is not agreed yet. `counted` pages have had this request counted
    as a hit.
    """

    namespace: bytes
    slots: list[int]
    committed: int
    tip: int
    hold: Hold
    counted: int
    full: list[PageKey] = field(default_factory=list)
    closing: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """A lease, and where its pages came from. `device_pages` were on the device, the `host_pages` after them are
    being copied there; `misses` says for each reusable page beyond why it is not here."""

    lease: Lease
    device_pages: int
    host_pages: int
    misses: tuple[Miss, ...]


class Hierarchy:
    """Device and host tiers of one replica, as its head sees them, and the traffic between host and store.

    A host pool of capacity 0 turns the host tier off: then device pages leave for good. `store_backlog` is the most
    pages that may wait in host memory for their write to the store; 0 means that there is no store.
    """

    def __init__(
        self,
        tree: Tree,
        device: SlotPool,
        host: SlotPool,
        write: WritePolicy,
        executor: Executor,
        store_backlog: int = 0,
    ):
        self.tree = tree
        self.room = Room(tree, device, host)
        self.writes = StoreWrites(tree, executor, store_backlog)
        self.prefetches = Prefetches(tree, self.room, executor)
        self.copies = Copies(tree, self.room, executor, self.writes.saved)
        self.leases: set[Lease] = set()
        self._write = write
        self._executor = executor
        self._held_up: list[Lease] = []

    @property
    def in_flight(self) -> int:
        """Operations whose end is not agreed yet."""
        return len(self.copies.operations) + len(self.prefetches.active) + self.writes.in_flight

    def admit(
        self, keys: Sequence[PageKey], pages: int, namespace: bytes, spare: int = 0, counted: int = 0
    ) -> Admission | None:
        """Give a request of `pages` pages its place: what is held of `keys` plus fresh slots for the rest, or
        nothing.

        `keys` are the pages that may be reused (never all tokens of a prompt: one must be computed). All slots are
        reserved at once, with `spare` more left over, or None is returned and nothing has changed. `counted` pages
        had their hit counted at an earlier admission of the same request. Orders the load of pages that only the
        host has.
        """
        match = self.tree.match(keys)
        path = self.tree.path(match.page)
        hold = self.tree.hold(match.page, HoldKind.DEVICE)
        to_load = [page for page in path[match.device :] if not self.copies.arriving(page)]
        fresh = pages - match.held
        if self.room.on_device < len(to_load) + fresh + spare:
            hold.release()
            return None
        self.copies.load(to_load)
        slots = [self.copies.device_slot(page) for page in path]
        slots += self.room.take_device(fresh, Owner.REQUEST)
        lease = Lease(namespace, slots, match.held, match.page, hold, max(counted, match.held))
        self.leases.add(lease)
        self._reuse(path, counted)
        misses = tuple(self.room.departures.reason(key) for key in keys[match.held :])
        return Admission(lease, match.device, match.held - match.device, misses)

    def grow(self, lease: Lease) -> bool:
        """Give `lease` one more private slot. False, and nothing changed, when there is no room."""
        if self.room.on_device < 1:
            return False
        lease.slots += self.room.take_device(1, Owner.REQUEST)
        return True

    def commit(self, lease: Lease, keys: Sequence[PageKey]) -> None:
        """The next `len(keys)` pages of `lease` are full and computed: they enter the tree and are backed up as the
        write policy says. Where another request was quicker, the lease takes over that page's slot and frees its
        own."""
        waits = bool(lease.full)
        lease.full += keys
        if not waits:
            self._enter(lease)

    def release(self, lease: Lease) -> None:
        """The request is done, aborted or retracted: private slots are free again, committed pages stay for others.

        Pages that still wait to enter the tree are waited for; the lease ends with them.
        """
        if lease.full:
            lease.closing = True
            return
        self.leases.remove(lease)
        self.room.device.give(lease.slots[lease.committed :], Owner.REQUEST)
        lease.hold.release()
        if lease.tip != ROOT:
            self.tree.touch(lease.tip)

    def absorb(self) -> None:
        """Take in what every rank has finished: copies and the pages that waited for them, reads and writes."""
        progress = self._executor.progress()
        self.copies.absorb(progress.copied_upto)
        self.prefetches.absorb(progress)
        self.writes.absorb(progress)
        held_up, self._held_up = self._held_up, []
        for lease in held_up:
            self._enter(lease)
            if lease.closing and not lease.full:
                self.release(lease)

    def run_ahead(self, target: int) -> None:
        """Copy cold unsaved pages to host until `target` device slots are free, or can be once the copies have
        ended."""
        while (short := target - self.room.on_device - self.copies.saving) > 0:
            leaf = self.tree.unsaved_leaves.coldest()
            if leaf is None:
                if self.room.expose():
                    continue
                return
            chain = self.tree.unsaved_chain(leaf, short)
            self.room.thin_copies(len(chain))
            if not self.copies.back_up_from_leaf(chain):
                return

    def _enter(self, lease: Lease) -> None:
        """Move the full pages of `lease` into the tree, up to the first whose parent is still on its way to the
        device."""
        to_save, entered = [], 0
        while entered < len(lease.full) and not self.copies.arriving(lease.tip):
            lease.tip = self._enter_page(lease, lease.full[entered])
            entered += 1
            if self._write.wants_backup(self.tree.columns.hits[lease.tip]):
                to_save.append(lease.tip)
        del lease.full[:entered]
        if lease.full:
            self._held_up.append(lease)
        if entered:
            hold = self.tree.hold(lease.tip, HoldKind.DEVICE)
            lease.hold.release()
            lease.hold = hold
            self.tree.touch(lease.tip)
            self.copies.back_up(to_save)

    def _enter_page(self, lease: Lease, key: PageKey) -> int:
        index = lease.committed
        own = lease.slots[index]
        lease.committed += 1
        page = self.tree.find(key)
        if page is None:
            page = self.tree.insert(lease.tip, key, Tier.DEVICE, own, lease.namespace)
            self.room.device.move([own], Owner.REQUEST, Owner.TREE)
        else:
            if index >= lease.counted:
                self.tree.hit(page)
            self._join(lease, index, page)
        lease.counted = max(lease.counted, index + 1)
        return page

    def _join(self, lease: Lease, index: int, page: int) -> None:
        """The page is in the tree already: use its device slot, or give it ours if only the host has it."""
        own = lease.slots[index]
        if self.copies.arriving(page) or self.tree.slot(page, Tier.DEVICE) is not None:
            lease.slots[index] = self.copies.device_slot(page)
            self.room.device.give([own], Owner.REQUEST)
        else:
            self.tree.place(page, Tier.DEVICE, own)
            self.room.device.move([own], Owner.REQUEST, Owner.TREE)

    def _reuse(self, path: list[int], counted: int) -> None:
        if path:
            self.tree.touch(path[-1])
        self.copies.back_up(
            [page for page in path[counted:] if self._write.wants_backup(self.tree.hit(page))]
        )
