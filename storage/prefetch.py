"""Prefetches: what only the store has comes into host memory while its request waits.

A prefetch owns its host slots and holds its anchor, the deepest held page before it. Pages in flight are in no
tree yet, and are joined, never read twice. It is final when every rank has drained it: then the pages that landed
on all ranks enter the tree, and everything else is given back. What came stays on this replica until the requests that
it was brought for have had their turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from stratakv.storage.holds import Hold, HoldKind
from stratakv.storage.moves import (
    PREFETCH_SLOTS,
    Area,
    Cut,
    Executor,
    PageStamp,
    Part,
    Progress,
    Read,
    Release,
)
from stratakv.storage.pools import Owner
from stratakv.storage.room import Room
from stratakv.storage.side import Side
from stratakv.storage.tiers import Component, PageKey, Tier
from stratakv.storage.tree import Tree


class Stretch(NamedTuple):
    """What to bring of a history whose page keys are `chain`: full pages number `first` to `end - 1`, counted from 0,
    and of each side component the pages with the numbers in `sides`."""

    chain: Sequence[PageKey]
    first: int
    end: int
    namespace: bytes
    sides: Mapping[Component, Sequence[int]] = {}


@dataclass(eq=False, slots=True)
class Prefetch:
    """A stretch on its way from the store: page i of `keys` is read into host slot `targets[i]`, after the sides.

    `side_keys` and `side_targets` are the same for each side component. `slot` is None while it queues. `landed` pages
    are here for good once it is `final`; `complete` says that sides and pages all came. `claims` requests still wait
    for it, or for their turn after it: `hold` is on its anchor, and after the end on the deepest page that landed, and
    `guarded` are the sides that came with it.
    """

    keys: list[PageKey]
    stretch: Stretch
    targets: list[int]
    side_targets: dict[Component, list[int]]
    hold: Hold
    claims: int = 1
    guarded: list[tuple[Side, int]] = field(default_factory=list)
    slot: int | None = None
    done: int = 0
    cut: bool = False
    final: bool = False
    side_keys: dict[Component, list[PageKey]] = field(default_factory=dict)

    @property
    def side_blocks(self) -> int:
        """Blocks of sides, which are read first: without them the pages are of no use."""
        return sum(len(targets) for targets in self.side_targets.values())

    @property
    def landed(self) -> int:
        """Full pages that are here on all ranks."""
        return max(0, self.done - self.side_blocks)

    @property
    def complete(self) -> bool:
        """Whether all that was asked for is here."""
        return self.done == self.side_blocks + len(self.targets)


class Prefetches:
    """Reads from the store in flight, and what they brought for requests whose turn has not come. At most half of the
    host pool is theirs, so that loads always find room."""

    def __init__(self, tree: Tree, room: Room, executor: Executor, sides: Mapping[Component, Side]):
        self.pages_landed = 0
        self.pages_lost = 0
        """Pages that were asked for and did not come: cut, missing after all, corrupt or failed."""
        self.active: list[Prefetch] = []
        self.kept: list[Prefetch] = []
        """Final ones with claims."""
        self._tree = tree
        self._room = room
        self._executor = executor
        self._sides = sides
        self._free_slots = list(range(PREFETCH_SLOTS - 1, -1, -1))
        self._bringing: dict[Component, dict[PageKey, Prefetch]] = {c: {} for c in Component}

    @property
    def limit(self) -> int:
        """Full pages that prefetches may take of host memory together."""
        return self._room.host.capacity // 2

    @property
    def room(self) -> int:
        """Full pages that a prefetch may still take of host memory now."""
        kept = sum(prefetch.landed for prefetch in self.kept)
        return max(0, self.limit - kept - sum(len(prefetch.targets) for prefetch in self.active))

    def bringing(self, key: PageKey, component: Component = Component.FULL) -> Prefetch | None:
        """The prefetch that has `key` in flight, to be waited for instead of reading it again."""
        return self._bringing[component].get(key)

    def crowded(self, pages: int) -> bool:
        """Whether so many full pages find no room now, because of other prefetches."""
        return self.room < min(pages, self.limit)

    def join(self, prefetch: Prefetch) -> None:
        """One more request waits for `prefetch`, which is active."""
        prefetch.claims += 1

    def let_go(self, prefetch: Prefetch) -> None:
        """A request that waited for `prefetch` has had its turn, or has gone. What landed may leave like any other page
        once all have."""
        prefetch.claims -= 1
        if prefetch.final and not prefetch.claims:
            self.kept.remove(prefetch)
            prefetch.hold.release()
            for side, page in prefetch.guarded:
                side.unguard(page, Tier.HOST)

    def start(
        self, anchor: int, stretch: Stretch, minimum: int, after: Prefetch | None = None
    ) -> Prefetch | None:
        """Begin to read `stretch`, whose pages begin right below the held page `anchor`; without sides, as much of it
        as there is host room for. The caller has a claim on it, and must `let_go`; it takes the place of its claim on
        `after`, which brought the pages before: the anchor holds those now.

        Stops before a page that is in flight already. None, and nothing changed, when fewer than `minimum` pages fit,
        or, with sides, not all of it, or a side is in flight already.
        """
        keys = stretch.chain[stretch.first : stretch.end]
        in_flight = (i for i, key in enumerate(keys) if key in self._bringing[Component.FULL])
        room = self.room + (after.landed if after is not None and after in self.kept else 0)
        wanted = min(next(in_flight, len(keys)), room)
        least = len(keys) if stretch.sides else minimum
        busy = any(
            stretch.chain[n] in self._bringing[c] for c, numbers in stretch.sides.items() for n in numbers
        )
        if wanted < least or busy:
            return None
        hold = self._tree.hold(anchor, HoldKind.HELD)
        side_targets = {
            component: self._sides[component].take(Tier.HOST, len(numbers), Owner.FLIGHT)
            for component, numbers in stretch.sides.items()
        }
        targets = self._room.take_host_to_read(wanted)
        prefetch = Prefetch(list(keys[: len(targets)]), stretch, targets, side_targets, hold)
        short = any(len(side_targets[c]) < len(numbers) for c, numbers in stretch.sides.items())
        if len(targets) < least or short:
            self._give_back(prefetch, 0)
            hold.release()
            return None
        prefetch.side_keys = {c: [stretch.chain[n] for n in numbers] for c, numbers in stretch.sides.items()}
        for component, names in _names(prefetch):
            self._bringing[component].update(dict.fromkeys(names, prefetch))
        if after is not None:
            self.let_go(after)
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
            prefetch.done = state.done
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
        stretch = prefetch.stretch
        pages = range(stretch.first, stretch.first + len(prefetch.targets))
        parts = [
            Part(component, tuple(targets), _stamps(stretch, stretch.sides[component]))
            for component, targets in prefetch.side_targets.items()
        ]
        if pages:
            parts.append(Part(Component.FULL, tuple(prefetch.targets), _stamps(stretch, pages)))
        self._executor.submit(Read(prefetch.slot, tuple(parts)))

    def _end(self, prefetch: Prefetch) -> None:
        self._commit(prefetch)
        before = 0
        for component, targets in prefetch.side_targets.items():
            here = targets[: max(0, prefetch.done - before)]
            self._commit_side(self._sides[component], prefetch.side_keys[component], here)
            before += len(targets)
        self._give_back(prefetch, prefetch.done)
        for component, names in _names(prefetch):
            for name in names:
                del self._bringing[component][name]
        prefetch.final = True
        self.active.remove(prefetch)
        if prefetch.claims:
            self._keep(prefetch)
        else:
            prefetch.hold.release()
        self.pages_landed += prefetch.landed
        self.pages_lost += len(prefetch.keys) - prefetch.landed

    def _keep(self, prefetch: Prefetch) -> None:
        """From now on hold the deepest page that landed and, if they are of use, the sides."""
        self.kept.append(prefetch)
        tip = self._tree.find(prefetch.keys[prefetch.landed - 1]) if prefetch.landed else None
        if tip is not None:
            anchor, prefetch.hold = prefetch.hold, self._tree.hold(tip, HoldKind.HELD)
            anchor.release()
        for component, keys in prefetch.side_keys.items() if prefetch.complete else ():
            found = [page for page in map(self._tree.find, keys) if page is not None]
            prefetch.guarded += [(self._sides[component], page) for page in found]
        for side, page in prefetch.guarded:
            side.guard(page, Tier.HOST)

    def _give_back(self, prefetch: Prefetch, done: int) -> None:
        """Free the targets of all blocks after the first `done`."""
        for component, targets in prefetch.side_targets.items():
            self._sides[component].host.book.give(targets[done:], Owner.FLIGHT)
            done = max(0, done - len(targets))
        self._room.host.give(prefetch.targets[done:], Owner.FLIGHT)

    def _commit(self, prefetch: Prefetch) -> None:
        """The pages that landed are in host memory now, unless they got here on another way meanwhile: those are the
        first of them, since what is held of a history is a prefix of it."""
        tree, stored, parent = self._tree, self._tree.columns.stored, prefetch.hold.page
        keys, slots = prefetch.keys[: prefetch.landed], prefetch.targets[: prefetch.landed]
        known = list(takewhile(lambda page: page is not None, map(tree.find, keys)))
        for page in known:
            assert page is not None
            stored[page], parent = 1, page
        # They were computed meanwhile, and whether they have a host copy is for their own backup to say.
        self._room.host.give(slots[: len(known)], Owner.FLIGHT)
        if keys[len(known) :]:
            fresh = slots[len(known) :]
            pages = tree.insert_run(parent, keys[len(known) :], Tier.HOST, fresh, prefetch.stretch.namespace)
            self._room.host.move(fresh, Owner.FLIGHT, Owner.TREE)
            for page in pages:
                stored[page] = 1

    def _commit_side(self, side: Side, keys: Sequence[PageKey], slots: Sequence[int]) -> None:
        """These sides are in host memory now. One whose page did not come, or that is here already, is let go."""
        for key, slot in zip(keys, slots, strict=False):
            page = self._tree.find(key)
            if page is None or page in side.host.slots or page in side.saving:
                side.host.book.give([slot], Owner.FLIGHT)
            else:
                side.host.book.move([slot], Owner.FLIGHT, Owner.TREE)
                side.place(page, Tier.HOST, slot, self._tree.tick)
                side.stored.add(page)


def _names(prefetch: Prefetch) -> list[tuple[Component, list[PageKey]]]:
    return [(Component.FULL, prefetch.keys), *prefetch.side_keys.items()]


def _stamps(stretch: Stretch, numbers: Sequence[int]) -> tuple[PageStamp, ...]:
    chain = stretch.chain
    return tuple(PageStamp(chain[n], chain[n - 1] if n else b"", n + 1, stretch.namespace) for n in numbers)
