"""The heart: match, admit, prefetch, load, commit, back up, evict, as plain code over the tree, the slots and an
executor.

The head of a replica owns one. It decides over what has been agreed so far; the executor carries the copies out and
reports. The worker's executor moves tensors, the replay's moves nothing, the property test's is late and slow.

Who owns a slot: the tree (a resident page), a request (a page it is filling), or an operation in flight (the
target of a copy). Sources of a copy are held until it has ended, so no slot is written under a late read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stratakv.storage.columns import ROOT
from stratakv.storage.copies import Copies
from stratakv.storage.holds import Hold, HoldKind
from stratakv.storage.moves import Executor
from stratakv.storage.pages import Pages
from stratakv.storage.policies.write import WritePolicy
from stratakv.storage.pools import Owner, SlotPool
from stratakv.storage.prefetch import Prefetches
from stratakv.storage.residence import Holdings
from stratakv.storage.room import Room
from stratakv.storage.side_setup import SidePools, set_up
from stratakv.storage.sides import Place, SideLease
from stratakv.storage.tiers import Miss, PageKey, Tier
from stratakv.storage.tree import Tree
from stratakv.storage.vote import Boundary, find_boundary
from stratakv.storage.writes import StoreWrites


@dataclass(eq=False, slots=True)
class Lease:
    """A request's place on the device.

    `slots` are the device slots of its pages in order. The first `committed` pages are in the tree, ending at
    `tip`, and held; the rest is private to the request. `full` are keys of computed pages that wait to enter the
    tree, because the load of the page before them is not agreed yet. `counted` pages have had this request counted
    as a hit. `marks` are the numbers of pages after which the history may be taken up again, and sides are kept.
    """

    namespace: bytes
    slots: list[int]
    committed: int
    tip: int
    hold: Hold
    counted: int
    side: SideLease
    marks: frozenset[int] = frozenset()
    priority: int = 0
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


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks of the hierarchy beside its keys: a `namespace`, `spare` device slots to be left over, the
    pages it `counted` as hits at an earlier admission, its `priority`, and how many pages of its history are `known`
    anywhere, in the store too."""

    namespace: bytes = b""
    spare: int = 0
    counted: int = 0
    priority: int = 0
    known: int = 0


class Hierarchy:
    """Device and host tiers of one replica, as its head sees them, and the traffic between host and store.

    A host pool of capacity 0 turns the host tier off: then device pages leave for good. `store_backlog` is the most
    blocks that may wait in host memory for their write to the store; 0 means that there is no store. `sides` are the
    pools of sliding and recurrent state, for models that have any.
    """

    def __init__(
        self,
        tree: Tree,
        device: SlotPool,
        host: SlotPool,
        write: WritePolicy,
        executor: Executor,
        store_backlog: int = 0,
        sides: SidePools | None = None,
    ):
        self.tree = tree
        self.room = Room(tree, device, host)
        self.writes = StoreWrites(tree, executor, store_backlog)
        self.copies = Copies(executor)
        self.pages = Pages(tree, self.room, self.copies, self.writes.saved)
        self.sides = set_up(sides, tree, self.room, self.copies, self.writes)
        side_of = {side.component: side for side in self.sides.all}
        self.prefetches = Prefetches(tree, self.room, executor, side_of)
        self.leases: set[Lease] = set()
        self._interval = sides.checkpoint_pages if sides is not None else 0
        self._write = write
        self._executor = executor
        self._held_up: list[Lease] = []

    @property
    def in_flight(self) -> int:
        """Operations whose end is not agreed yet."""
        return len(self.copies.operations) + len(self.prefetches.active) + self.writes.in_flight

    def holdings(self) -> Holdings:
        """All pages and sides that are here, for whoever keeps a copy of the index. O(pages)."""
        key = self.tree.columns.key
        sides = {
            side.component: [key[page] for page in side.device.slots.keys() | side.host.slots.keys()]
            for side in self.sides.all
        }
        return replace(self.tree.holdings(), side=sides)

    def find(self, keys: Sequence[PageKey]) -> Boundary:
        """How far the history `keys` can be continued from what is held here. Changes nothing."""
        return find_boundary(self.tree, self.sides.all, keys)

    def misses(self, keys: Sequence[PageKey], found: Boundary) -> tuple[Miss, ...]:
        """Why each page of `keys` after the boundary `found` is not served from here."""
        unusable = [found.reason or Miss.NEVER_SEEN] * (found.full - found.held)
        return (*unusable, *self.room.departures.reasons(keys[found.full :]))

    def admit(self, keys: Sequence[PageKey], pages: int, asked: Asked) -> Admission | None:
        """Give a request of `pages` pages its place: what is held of `keys` plus fresh slots for the rest, or
        nothing.

        `keys` are the pages that may be reused (never all tokens of a prompt: one must be computed). All slots are
        reserved at once, with those to spare left over, or None is returned and nothing has changed. Orders the load
        of pages that only the host has.
        """
        found = self.find(keys)
        path, tip = found.path, found.path[-1] if found.path else ROOT
        hold = self.tree.hold(tip, HoldKind.DEVICE)
        to_load = [page for page in path[found.device :] if not self.pages.arriving(page)]
        fresh = pages - len(path)
        if self.room.on_device < len(to_load) + fresh + asked.spare or not self.sides.fits(path):
            hold.release()
            return None
        self._stamp(path)
        side = self.sides.open(path)
        self.pages.load(to_load)
        slots = self.pages.device_slots(path)
        slots += self.room.take_device(fresh, Owner.REQUEST)
        marks = self._marks(len(keys), found, asked.known)
        counted = max(asked.counted, len(path))
        lease = Lease(
            asked.namespace, slots, len(path), tip, hold, counted, side, marks, asked.priority
        )  # fmt: skip
        self.leases.add(lease)
        self._count(path, asked)
        return Admission(lease, found.device, len(path) - found.device, self.misses(keys, found))

    def grow(self, lease: Lease) -> bool:
        """Give `lease` one more private slot. False, and nothing changed, when there is no room."""
        if self.room.on_device < 1:
            return False
        lease.slots += self.room.take_device(1, Owner.REQUEST)
        return True

    def shed(self, lease: Lease) -> bool:
        """Where checkpoints lie in page slots: give up those that `lease` has taken and not shared yet, as room to go
        on. False when there are none, or when something is in flight that may make room."""
        checkpoints, state = self.sides.checkpoints, lease.side.state
        if checkpoints is None or state is None or self.in_flight or not self.room.lends_to(checkpoints.side):
            return False
        return checkpoints.shed(state)

    def prepare(self, lease: Lease, start: int, end: int) -> Place | None:
        """Where a step of `lease` that computes in pages `start` to `end - 1` finds its sides. None when it must sit
        this step out, until copies in flight have ended."""
        return self.sides.prepare(lease.side, start, end, settled=not lease.full)

    def next_stop(self, lease: Lease, page: int) -> int | None:
        """The number of pages after which a step from within page number `page` should end, so that a checkpoint can
        be taken there; None when nothing asks for it."""
        if self.sides.checkpoints is None:
            return None
        return min((mark for mark in lease.marks if mark > page), default=None)

    def commit(self, lease: Lease, keys: Sequence[PageKey], at_boundary: bool = False) -> None:
        """The next `len(keys)` pages of `lease` are full and computed: they enter the tree and are backed up as the
        write policy says. Where another request was quicker, the lease takes over that page's slot and frees its
        own. `at_boundary` says that the last token computed is the last of these pages."""
        waits = bool(lease.full)
        lease.full += keys
        if keys and at_boundary:
            count = lease.committed + len(lease.full)
            self.sides.passed(lease.side, count, count in lease.marks)
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
        if lease.tip != ROOT:
            self.tree.touch(lease.tip)
        self._save_sides(self.sides.close(lease.side, lease.committed, lease.tip))
        self.room.device.give(lease.slots[lease.committed :], Owner.REQUEST)
        lease.hold.release()

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
        ended. With a page go its sides."""
        if self.room.host.capacity:
            self.sides.run_ahead()
        while (short := target - self.room.on_device - self.pages.saving) > 0:
            leaf = self.tree.unsaved_leaves.coldest()
            if leaf is None:
                if self.room.expose():
                    continue
                return
            chain = self.tree.unsaved_chain(leaf, short)
            self.sides.back_up(chain[::-1])
            if not self.pages.back_up_from_leaf(chain):
                return

    def _marks(self, reusable: int, found: Boundary, known: int) -> frozenset[int]:
        """Where the history of a request may be taken up again: at the end of its prompt, where it leaves what is held
        here or known elsewhere, and every so often."""
        if not self.sides.all:
            return frozenset()
        every = range(self._interval, reusable, self._interval) if self._interval else ()
        return frozenset(count for count in (*every, found.full, known, reusable) if count > found.held)

    def _enter(self, lease: Lease) -> None:
        """Move the full pages of `lease` into the tree, up to the first whose parent is still on its way to the
        device."""
        first, pages = lease.committed, list[int]()
        while lease.full and not self.pages.arriving(lease.tip):
            pages += self._enter_pages(lease)
        if lease.full:
            self._held_up.append(lease)
        if pages:
            self.tree.favour(lease.tip, lease.priority)
            hold = self.tree.hold(lease.tip, HoldKind.DEVICE)
            lease.hold.release()
            lease.hold = hold
            to_save = self._worth_saving(pages, [self.tree.columns.hits[page] for page in pages])
            sides: list[int] = []
            for count, page in enumerate(pages, first + 1) if self.sides.all else ():
                sides += self.sides.entered(lease.side, count, page, count in lease.marks)
            self.tree.touch(lease.tip)
            self.sides.back_up([page for page in dict.fromkeys(sides) if page in set(to_save)])
            self.pages.back_up(to_save)
            self._save_sides(sides)

    def _worth_saving(self, pages: list[int], hits: list[int]) -> list[int]:
        """Those of `pages`, which have had so many hits, of which the write policy wants a copy."""
        enough = {count for count in set(hits) if self._write.wants_backup(count)}
        return [page for page, count in zip(pages, hits, strict=True) if count in enough]

    def _save_sides(self, fresh: Sequence[int]) -> None:
        """Save what is new on pages that have a host copy themselves; on the others it goes when they go."""
        self.sides.back_up([page for page in dict.fromkeys(fresh) if self.pages.saved(page)])

    def _enter_pages(self, lease: Lease) -> list[int]:
        """The next full page of `lease` enters the tree, and if that is new there, so are all the others. Returns what
        entered."""
        index, page = lease.committed, self.tree.find(lease.full[0])
        if page is None:
            keys, lease.full = lease.full, []
            own = lease.slots[index : index + len(keys)]
            pages = self.tree.insert_run(lease.tip, keys, Tier.DEVICE, own, lease.namespace)
            for page in pages if lease.priority else ():
                self.tree.columns.priority[page] = lease.priority
            self.room.device.move(own, Owner.REQUEST, Owner.TREE)
        else:
            if index >= lease.counted:
                self.tree.hit(page)
            self._join(lease, index, page)
            del lease.full[0]
            pages = [page]
        lease.committed += len(pages)
        lease.counted = max(lease.counted, lease.committed)
        lease.tip = pages[-1]
        return pages

    def _join(self, lease: Lease, index: int, page: int) -> None:
        """The page is in the tree already: use its device slot, or give it ours if only the host has it."""
        own = lease.slots[index]
        if self.pages.arriving(page) or self.tree.slot(page, Tier.DEVICE) is not None:
            lease.slots[index] = self.pages.device_slot(page)
            self.room.device.give([own], Owner.REQUEST)
        else:
            self.tree.place_run([page], Tier.DEVICE, [own])
            self.room.device.move([own], Owner.REQUEST, Owner.TREE)

    def _stamp(self, path: list[int]) -> None:
        if path:
            self.tree.touch(path[-1])

    def _count(self, path: list[int], asked: Asked) -> None:
        """One more request uses these pages. Those that this makes worth saving are saved."""
        if path:
            self.tree.favour(path[-1], asked.priority)
        used = path[asked.counted :]
        wanted = self._worth_saving(used, self.tree.hit_run(used))
        self.sides.back_up(wanted)
        self.pages.back_up(wanted)
