"""The page tree: one node per page, never split, so that matching changes nothing. It decides and never touches
bytes.

Two sets of `full` pages are prefix-closed: *device*, and *held* (device or host). What a replica holds of any
history is therefore a prefix of it, found by bisection, and a cold history drains from its tail. Every public
method keeps the invariants that `check` (tree_check.py) recomputes from nothing.
"""

from collections.abc import Callable, Sequence

from stratakv.storage.columns import NONE, ROOT, Columns
from stratakv.storage.holds import Hold, HoldKind, TreeError
from stratakv.storage.outcomes import Dropped, Left, Match
from stratakv.storage.policies.eviction import EvictionPolicy, PageUse
from stratakv.storage.residence import Holdings, ResidenceLog
from stratakv.storage.standing import Standing
from stratakv.storage.tiers import Component, PageKey, Tier


class Tree:
    """The index of one replica's device and host tiers.

    `eviction` orders those who leave; `has_host` says whether a page without a host copy is worth saving first.
    """

    def __init__(self, eviction: EvictionPolicy, has_host: bool):
        self.columns = Columns((Component.FULL,))
        self.log = ResidenceLog()
        """What changed in the device and the held set, for the router."""
        full = self.columns.slots[Component.FULL]
        self._device, self._host = full[Tier.DEVICE], full[Tier.HOST]
        self._slots = full
        self._eviction = eviction
        self.has_host = has_host
        self._index: dict[PageKey, int] = {}
        self._namespaces: dict[int, bytes] = {}
        self._tick = 0
        self.columns.guard[ROOT] = 1  # the root never leaves: this hold is never released
        self._standing = Standing(self.columns, self._rank)
        self.clean_leaves = self._standing.clean_leaves
        self.unsaved_leaves = self._standing.unsaved_leaves
        self.host_leaves = self._standing.host_leaves
        self.holds = 0
        """Holds that are out."""
        self.on_leave: list[Callable[[int, Tier], None]] = []
        """Told of each page that leaves a tier, while it is still there: what else lies in that tier on its account
        goes with it."""
        self.on_delete: list[Callable[[int], None]] = []
        """Told of each page that leaves the tree, while its row is still its own."""

    @property
    def freeable(self) -> int:
        """Device pages that can leave at once, leaf by leaf: unguarded, and saved to host with all below them."""
        return self._standing.freeable

    @property
    def stuck(self) -> int:
        """Device pages that are unguarded but not freeable: they, or pages below them, have no host copy yet."""
        return self._standing.stuck

    def __len__(self) -> int:
        return len(self._index)

    # -- reading ---------------------------------------------------------------------------------------------

    def find(self, key: PageKey) -> int | None:
        """The page with this key, or None."""
        return self._index.get(key)

    def match(self, keys: Sequence[PageKey]) -> Match:
        """How far `keys`, a chain from the first page on, is held here. Changes nothing; O(log len(keys))."""
        held = self._bisect(keys, len(keys), on_device=False)
        device = self._bisect(keys, held, on_device=True)
        return Match(device, held, self._index[keys[held - 1]] if held else ROOT)

    def _bisect(self, keys: Sequence[PageKey], high: int, on_device: bool) -> int:
        low = 0
        while low < high:
            middle = (low + high + 1) // 2
            page = self._index.get(keys[middle - 1])
            if page is not None and (not on_device or self._device[page] != NONE):
                low = middle
            else:
                high = middle - 1
        return low

    def slot(self, page: int, tier: Tier) -> int | None:
        """The slot of `page` in `tier`, or None when it is not resident there."""
        slot = self._slots[tier][page]
        return None if slot == NONE else slot

    def holdings(self) -> Holdings:
        """All keys on the device, and all that are held. O(pages)."""
        on_device = [key for key, page in self._index.items() if self._device[page] != NONE]
        return Holdings(on_device, list(self._index))

    def path(self, page: int) -> list[int]:
        """The pages from the first of the history to `page`, in order; empty for the root."""
        pages = []
        while page != ROOT:
            pages.append(page)
            page = self.columns.parent[page]
        pages.reverse()
        return pages

    def namespace(self, page: int) -> bytes:
        """The digest of the namespace that `page` lives in; empty for none. O(depth)."""
        while self._namespaces and self.columns.depth[page] > 1:
            page = self.columns.parent[page]
        return self._namespaces.get(page, b"")

    def unsaved_chain(self, leaf: int, limit: int) -> list[int]:
        """`leaf` and the unguarded pages right above it that have no host copy either, leaf first, at most
        `limit`."""
        chain: list[int] = []
        while (
            len(chain) < limit and leaf != ROOT and self._host[leaf] == NONE and not self.columns.guard[leaf]
        ):
            chain.append(leaf)
            leaf = self.columns.parent[leaf]
        return chain

    # -- residence -------------------------------------------------------------------------------------------

    def insert(self, parent: int, key: PageKey, tier: Tier, slot: int, namespace: bytes = b"") -> int:
        """A new page below `parent`; see `insert_run`. Returns it."""
        return self.insert_run(parent, [key], tier, [slot], namespace)[0]

    def insert_run(
        self, parent: int, keys: Sequence[PageKey], tier: Tier, slots: Sequence[int], namespace: bytes = b""
    ) -> list[int]:
        """New pages, the first below `parent` and each further one below the one before, resident in `tier` at `slots`,
        with one hit each. Returns them.

        The tree remembers `namespace` (a digest) for first pages; later pages share that of their first.
        TreeError when a key is known, or when a device page would lie below a parent that is not on the device.
        """
        if not self._index.keys().isdisjoint(keys):
            known = next(key for key in keys if key in self._index)
            raise TreeError(f"page {known.hex()[:12]} is in the tree already")
        if tier is Tier.DEVICE and not self._takes_device_child(parent):
            raise TreeError("a page was put on the device below a parent that is not there")
        pages = self.columns.new_rows(keys, parent, self._tick)
        self._tick += len(pages)
        self._index.update(zip(keys, pages, strict=True))
        self.log.note_held_run(keys, True)
        if parent == ROOT and namespace:
            self._namespaces[pages[0]] = namespace
        self._standing.settle(parent)
        self.place_run(pages, tier, slots)
        return pages

    def place_run(self, pages: list[int], tier: Tier, slots: Sequence[int]) -> None:
        """`pages`, in the order of one path, are now resident in `tier` at `slots` as well. On the device none of the
        path may be left out between them. TreeError when one was there, or when its parent is not on the device."""
        column, parent = self._slots[tier], self.columns.parent
        if not {NONE}.issuperset(map(column.__getitem__, pages)):
            raise TreeError(f"one of the pages {pages[0]} to {pages[-1]} is on the {tier} already")
        below = [parent[page] for page in pages]
        if tier is Tier.DEVICE and not (self._takes_device_child(below[0]) and below[1:] == pages[:-1]):
            raise TreeError("a page was put on the device below a parent that is not there")
        for page, slot in zip(pages, slots, strict=True):
            column[page] = slot
        if tier is Tier.DEVICE:
            self._came_to_device(pages)
        else:
            self._standing.saved([page for page in pages if self._device[page] != NONE])
        self._standing.settle(pages[-1])

    def _came_to_device(self, pages: Sequence[int]) -> None:
        columns = self.columns
        keys, children, parent = columns.key, columns.device_children, columns.parent
        for page in pages:
            children[parent[page]] += 1
        self.log.note_device_run([keys[page] for page in pages], True)
        self._standing.arrived(pages, self.has_host)

    def _takes_device_child(self, parent: int) -> bool:
        return parent == ROOT or self._device[parent] != NONE

    def leave(self, page: int, tier: Tier) -> int:
        """`page` leaves `tier`; a page that is nowhere any more leaves the tree. Returns the slot it had.

        TreeError when the page is held there, or when the set it leaves would no longer be prefix-closed.
        """
        slot = self._slots[tier][page]
        if slot == NONE:
            raise TreeError(f"page {page} is not on the {tier}")
        last = self._slots[Tier.HOST if tier is Tier.DEVICE else Tier.DEVICE][page] == NONE
        columns = self.columns
        if last and (columns.held_children[page] or columns.guard[page] or columns.keep[page]):
            raise TreeError(f"page {page} left for good while it, or a page below it, is wanted")
        if tier is Tier.HOST:
            self._leave_host(page)
        else:
            self._leave_device(page)
        for told in self.on_leave:
            told(page, tier)
        if last:
            self._delete(page)
        else:
            self._standing.settle(page)
        return slot

    def _leave_host(self, page: int) -> None:
        if self.columns.keep[page]:
            raise TreeError(f"the host copy of page {page} left while it is being read")
        self._host[page] = NONE
        if self._device[page] != NONE:
            self._standing.mark_unsaved(page, 1)

    def _leave_device(self, page: int) -> None:
        columns = self.columns
        if columns.device_children[page] or columns.guard[page]:
            raise TreeError(f"page {page} left the device while it is held or has children there")
        if columns.unsaved[page]:
            self._standing.mark_unsaved(page, -1)
        self._standing.count(page, -1)
        self._device[page] = NONE
        self.log.note_device(columns.key[page], False)
        parent = columns.parent[page]
        columns.device_children[parent] -= 1
        self._hand_stamp(page, parent)
        self._standing.settle(parent)

    def leave_run(self, tier: Tier, limit: int) -> Left:
        """The coldest page that may leave `tier` does so, and after it the pages before it, at most `limit` in all, as
        long as each is then the coldest in its turn: what as many calls of `leave` would do. Empty when none may."""
        run = self._coldest_run(tier, limit)
        if not run:
            return Left([], [])
        columns, column = self.columns, self._slots[tier]
        last = tier is Tier.HOST or self._host[run[0]] == NONE  # all are saved, or there is no host
        keys, top = [columns.key[page] for page in run], columns.parent[run[-1]]
        slots = [column[page] for page in run]
        for page in run:
            column[page] = NONE
        if tier is Tier.DEVICE:
            for page in run[1:]:
                columns.device_children[page] = 0
            columns.device_children[top] -= 1
            self._standing.freeable -= len(run)
            self.log.note_device_run(keys, False)
        for told in self.on_leave:
            for page in run:
                told(page, tier)
        self._hand_stamp(run[-1], top)
        if last:
            self._delete_run(run, keys)
        self._standing.settle(run[0])
        self._standing.settle(top)
        return Left(slots, keys if last else [])

    def _coldest_run(self, tier: Tier, limit: int) -> list[int]:
        """Which pages `leave_run` is about, the deepest first. Hands the stamp of each to the next."""
        columns = self.columns
        if tier is Tier.DEVICE:
            queue, children, blocked = self.clean_leaves, columns.device_children, columns.unsaved
        else:
            queue, children, blocked = self.host_leaves, columns.held_children, columns.keep
        parent, guard, here = columns.parent, columns.guard, self._slots[tier]
        last_use, hits, priority = columns.last_use, columns.hits, columns.priority
        page = queue.coldest()
        if page is None or not limit:
            return []
        queue.set(page, False)
        run, next_to_leave = [page], queue.lowest()
        while len(run) < limit:
            above = parent[page]
            if children[above] != 1 or guard[above] or blocked[above] or here[above] == NONE:
                break
            if tier is Tier.HOST and self._device[above] != NONE:
                break
            alike = hits[above] == hits[page] and priority[above] == priority[page]
            if last_use[page] >= last_use[above]:
                last_use[above] = last_use[page]
            else:
                alike = False
            # What was used alike ranks no higher for being less deep.
            if not alike and next_to_leave is not None and (self._rank(above), above) >= next_to_leave:
                break
            page = above
            run.append(page)
        return run

    def _delete_run(self, run: Sequence[int], keys: Sequence[PageKey]) -> None:
        """Take pages out of the tree, deepest first, each the only child of the next."""
        columns = self.columns
        for told in self.on_delete:
            for page in run:
                told(page)
        for key in keys:
            del self._index[key]
        self.log.note_held_run(keys, False)
        self._namespaces.pop(run[-1], None)
        columns.unlink(run[-1])
        columns.held_children[columns.parent[run[-1]]] -= 1
        for page in run[1:]:
            columns.held_children[page] = 0
            columns.first_child[page] = NONE
        columns.free_rows(run)

    def drop(self, page: int) -> Dropped | None:
        """Take `page` and all below it out of the tree, saved or not. None, and nothing changed, when any of it is
        held."""
        columns = self.columns
        subtree = [page]
        for member in subtree:
            subtree.extend(columns.children(member))
        if any(columns.guard[member] or columns.keep[member] for member in subtree):
            return None
        dropped = Dropped([], [], [columns.key[member] for member in subtree])
        for member in reversed(subtree):
            for tier, given in ((Tier.DEVICE, dropped.device_slots), (Tier.HOST, dropped.host_slots)):
                if self._slots[tier][member] != NONE:
                    given.append(self.leave(member, tier))
        return dropped

    def _delete(self, page: int) -> None:
        columns = self.columns
        parent = columns.parent[page]
        for told in self.on_delete:
            told(page)
        self._hand_stamp(page, parent)
        self._standing.settle(page)
        del self._index[columns.key[page]]
        self.log.note_held(columns.key[page], False)
        self._namespaces.pop(page, None)
        columns.unlink(page)
        columns.held_children[parent] -= 1
        columns.free_row(page)  # its slots are NONE by now
        self._standing.settle(parent)

    # -- use -------------------------------------------------------------------------------------------------

    @property
    def tick(self) -> int:
        """The stamp of the latest use of all."""
        return self._tick

    def touch(self, page: int) -> None:
        """`page` was the deepest page used just now. Ancestors need no stamp: a page that leaves hands its stamp
        up."""
        self._tick += 1
        self.columns.last_use[page] = self._tick

    def favour(self, page: int, priority: int) -> None:
        """A request of this priority used `page` and all before it: they keep the highest they have seen."""
        columns = self.columns
        while page != ROOT and columns.priority[page] < priority:
            columns.priority[page] = priority
            page = columns.parent[page]

    def hit(self, page: int) -> int:
        """One more distinct request used `page`. Returns its hits, which never exceed its parent's: a request that
        comes back to pages which were lost and made anew meanwhile would otherwise count on some of them only."""
        return self.hit_run([page])[0]

    def hit_run(self, pages: list[int]) -> list[int]:
        """As `hit`, for pages in the order of one path."""
        hits, parent = self.columns.hits, self.columns.parent
        for page in pages:
            above = parent[page]
            if above == ROOT or hits[page] < hits[above]:
                hits[page] += 1
        return [hits[page] for page in pages]

    def _hand_stamp(self, page: int, parent: int) -> None:
        if self.columns.last_use[page] > self.columns.last_use[parent]:
            self.columns.last_use[parent] = self.columns.last_use[page]

    def _rank(self, page: int) -> float:
        return self.rank(page, self.columns.last_use[page])

    def rank(self, page: int, last_use: int) -> float:
        """What the eviction policy says of `page`, if it was last used at tick `last_use`: the lowest leaves first."""
        columns = self.columns
        use = PageUse(last_use, columns.hits[page], columns.depth[page], columns.priority[page])
        return self._eviction.rank(use)

    # -- holds -----------------------------------------------------------------------------------------------

    def hold(self, page: int, kind: HoldKind) -> Hold:
        """Lock `page`. DEVICE: neither it nor a page before it leaves the device (or the replica, if it is not on the
        device yet). HELD: it and those before it stay on this replica, and its host copy stays where it is."""
        if kind is HoldKind.DEVICE:
            self._standing.guard(page, 1)
        else:
            self.columns.keep[page] += 1
            self._standing.settle(page)
        self.holds += 1
        return Hold(page, kind, self._unhold)

    def _unhold(self, page: int, kind: HoldKind) -> None:
        if kind is HoldKind.DEVICE:
            self._standing.guard(page, -1)
        else:
            self.columns.keep[page] -= 1
            self._standing.settle(page)
        self.holds -= 1
