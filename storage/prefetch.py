"""Prefetches: pages that only the store has come into host memory while their request waits.

A prefetch owns its host slots and holds its anchor, the deepest held page before it. Pages in flight are in no
tree yet, and are joined, never read twice. It is final when every rank has drained it: then the pages that landed
on all ranks enter the tree, and everything else is given back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stratakv.storage.moves import PREFETCH_SLOTS, Area, Cut, Executor, PageStamp, Progress, Read, Release
from stratakv.storage.pools import Owner
from stratakv.storage.room import Room
from stratakv.storage.tiers import Component, PageKey, Tier
from stratakv.storage.tree import Hold, HoldKind, Tree


@dataclass(eq=False, slots=True)
class Prefetch:
    """A stretch of pages on its way from the store: page i of `keys` is read into host slot `targets[i]`.

    `slot` is None while it queues. `landed` pages are here for good once it is `final`.
    """

    keys: list[PageKey]
    namespace: bytes
    targets: list[int]
    anchor: Hold
    slot: int | None = None
    landed: int = 0
    cut: bool = False
    final: bool = False


class Prefetches:
    """Reads from the store in flight. At most half of the host pool is theirs, so that loads always find room."""

    def __init__(self, tree: Tree, room: Room, executor: Executor):
        self.pages_landed = 0
        self.pages_lost = 0
        """Pages that were asked for and did not come: cut, missing after all, corrupt or failed."""
        self.active: list[Prefetch] = []
        self._tree = tree
        self._room = room
        self._executor = executor
        self._free_slots = list(range(PREFETCH_SLOTS - 1, -1, -1))
        self._bringing: dict[PageKey, Prefetch] = {}

    def bringing(self, key: PageKey) -> Prefetch | None:
        """The prefetch that has `key` in flight, to be waited for instead of reading it again."""
        return self._bringing.get(key)

    def start(self, anchor: int, keys: Sequence[PageKey], namespace: bytes, minimum: int) -> Prefetch | None:
        """Begin to read `keys`, the pages right below the held page `anchor`, or as many as there is host room for.

        Stops before a page that is in flight already. None, and nothing changed, when fewer than `minimum` pages fit.
        """
        wanted = next((i for i, key in enumerate(keys) if key in self._bringing), len(keys))
        in_flight = sum(len(prefetch.targets) for prefetch in self.active)
        wanted = min(wanted, self._room.host.capacity // 2 - in_flight)
        if wanted < minimum:
            return None
        hold = self._tree.hold(anchor, HoldKind.HELD)
        targets = self._room.take_host(wanted)
        if len(targets) < minimum:
            self._room.host.give(targets, Owner.FLIGHT)
            hold.release()
            return None
        prefetch = Prefetch(list(keys[: len(targets)]), namespace, targets, hold)
        self._bringing.update((key, prefetch) for key in prefetch.keys)
        self.active.append(prefetch)
        self._order(prefetch)
        return prefetch

    def stop(self, prefetch: Prefetch) -> None:
        """Cut: no new read is issued. What has landed by the time that all ranks have drained is kept."""
        if prefetch.final or prefetch.cut:
            return
        prefetch.cut = True
        if prefetch.slot is None:
            self._end(prefetch)
        else:
            self._executor.submit(Cut(prefetch.slot))

    def absorb(self, progress: Progress) -> None:
        """Take in what landed, commit what is final, and start what queued."""
        for prefetch in list(self.active):
            if prefetch.slot is None:
                continue
            state = progress.slot(Area.PREFETCH, prefetch.slot)
            prefetch.landed = state.done
            if state.drained:
                self._executor.submit(Release(Area.PREFETCH, prefetch.slot))
                self._free_slots.append(prefetch.slot)
                self._end(prefetch)
        for prefetch in self.active:
            if prefetch.slot is None:
                self._order(prefetch)

    def _order(self, prefetch: Prefetch) -> None:
        if not self._free_slots:
            return
        prefetch.slot = self._free_slots.pop()
        columns, parent = self._tree.columns, prefetch.anchor.page
        depth, before = columns.depth[parent] + 1, [columns.key[parent], *prefetch.keys]
        stamps = tuple(
            PageStamp(key, before[i], depth + i, prefetch.namespace) for i, key in enumerate(prefetch.keys)
        )
        self._executor.submit(Read(prefetch.slot, Component.FULL, tuple(prefetch.targets), stamps))

    def _end(self, prefetch: Prefetch) -> None:
        parent = prefetch.anchor.page
        landed = list(zip(prefetch.keys, prefetch.targets, strict=True))[: prefetch.landed]
        for key, slot in landed:
            parent = self._commit(parent, key, slot, prefetch.namespace)
        self._room.host.give(prefetch.targets[prefetch.landed :], Owner.FLIGHT)
        for key in prefetch.keys:
            del self._bringing[key]
        prefetch.anchor.release()
        prefetch.final = True
        self.active.remove(prefetch)
        self.pages_landed += prefetch.landed
        self.pages_lost += len(prefetch.keys) - prefetch.landed

    def _commit(self, parent: int, key: PageKey, slot: int, namespace: bytes) -> int:
        """The page is in host memory now, unless it got here on another way meanwhile. Returns it."""
        page = self._tree.find(key)
        if page is None:
            page = self._tree.insert(parent, key, Tier.HOST, slot, namespace)
            self._room.host.move([slot], Owner.FLIGHT, Owner.TREE)
        else:
            # It was computed meanwhile, and whether it has a host copy is for its own backup to say.
            self._room.host.give([slot], Owner.FLIGHT)
        self._tree.columns.stored[page] = 1
        return page
