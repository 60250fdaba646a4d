"""The directory: which replica holds which page, and how deep into a history each of them reaches.

Fed by the heads' page events, asked once for each request. It holds no truth of its own: whatever it lost is asked
for again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from stratakv.cluster.messages import ComponentRule
from stratakv.cluster.routing.usable import SideRule, usable
from stratakv.storage.residence import Changes, Holdings
from stratakv.storage.tiers import Component, PageKey


class Verdict(Enum):
    """What the directory made of a message."""

    TAKEN = "taken"
    STALE = "stale"
    """Of an older generation, or known already: nothing changed."""
    GAP = "gap"
    """Something before it is missing: nothing changed, and only a snapshot helps."""


@dataclass(frozen=True, slots=True)
class Depth:
    """How many pages of a history, from its start, a replica has on the device and holds at all, as far as they are
    usable: all components of the model must accept to go on from there."""

    device: int = 0
    held: int = 0


@dataclass(slots=True)
class Known:
    """What the directory knows of a replica: state `sequence` of `generation`. Without `exact` events have been lost
    since: the state is a past one, still prefix-closed, and waits for a snapshot. `device` and `held` count pages,
    `side` those of each component beside."""

    generation: int
    sequence: int = -1
    exact: bool = False
    device: int = 0
    held: int = 0
    side: Counter[Component] = field(default_factory=Counter)


class Directory:
    """Page key -> bitset of replicas, for both prefix-closed sets.

    One integer per page has two lanes a replica: bit 2r says that replica r holds the page, bit 2r + 1 that it has it
    on the device. So a page costs one entry, and one bisection answers for all replicas and both sets. A page that
    nobody holds has no entry. Side components have bitsets of their own, with one bit a replica; they are closed in no
    way, and looked up page by page from the held depth back.
    """

    def __init__(self) -> None:
        self._lanes: dict[PageKey, int] = {}
        self._side: dict[Component, dict[PageKey, int]] = {}
        self._rules: dict[int, tuple[ComponentRule, ...]] = {}
        self._known: dict[int, Known] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def known(self) -> dict[int, Known]:
        """The replicas the directory has heard of. To be read only."""
        return self._known

    def set_rules(self, replica: int, rules: Sequence[ComponentRule]) -> None:
        """What the components of the model of `replica` need, from now on and over its generations. ValueError for a
        rule that contradicts itself."""
        for rule in rules:
            rule.policy  # noqa: B018 - it checks
        self._rules[replica] = tuple(rules)

    def apply(self, replica: int, generation: int, sequence: int, changes: Changes) -> Verdict:
        """Take event batch `sequence`. After a GAP batches change nothing until a snapshot has come: half of them
        could leave sets that are not prefix-closed, and bisection would lie."""
        verdict = self._judge(replica, generation, sequence)
        if verdict is not Verdict.TAKEN:
            return verdict
        known = self._known[replica]
        known.sequence = sequence
        known.held += _set(self._lanes, 2 * replica, changes.held_added)
        known.device += _set(self._lanes, 2 * replica + 1, changes.device_added)
        known.device -= _clear(self._lanes, 2 * replica + 1, changes.device_removed)
        known.held -= _clear(self._lanes, 2 * replica, changes.held_removed)
        for component, keys in changes.side_added.items():
            known.side[component] += _set(self._side.setdefault(component, {}), replica, keys)
        for component, keys in changes.side_removed.items():
            known.side[component] -= _clear(self._side.setdefault(component, {}), replica, keys)
        return verdict

    def announced(self, replica: int, generation: int, sequence: int) -> Verdict:
        """The head says that `sequence` was its latest batch. GAP when that one has not come, though it should have."""
        verdict = self._judge(replica, generation, sequence)
        if verdict is Verdict.TAKEN:
            self._known[replica].exact = False
            return Verdict.GAP
        return verdict

    def _judge(self, replica: int, generation: int, sequence: int) -> Verdict:
        known = self._known.get(replica)
        if known is None or generation > known.generation:
            self.forget(replica)  # what the generation before held is gone with it
            self._known[replica] = Known(generation)
            return Verdict.GAP
        if generation < known.generation or (known.exact and sequence <= known.sequence):
            return Verdict.STALE
        if known.exact and sequence == known.sequence + 1:
            return Verdict.TAKEN
        known.exact = False
        return Verdict.GAP

    def load_snapshot(self, replica: int, generation: int, sequence: int, holdings: Holdings) -> Verdict:
        """`replica` holds exactly this after batch `sequence`. STALE when the directory knows of something later."""
        known = self._known.get(replica)
        if known is not None and (generation, sequence) < (known.generation, known.sequence):
            return Verdict.STALE
        self.forget(replica)
        known = self._known[replica] = Known(generation, sequence, exact=True)
        known.held = _set(self._lanes, 2 * replica, holdings.held)
        known.device = _set(self._lanes, 2 * replica + 1, holdings.device)
        for component, keys in holdings.side.items():
            known.side[component] = _set(self._side.setdefault(component, {}), replica, keys)
        return Verdict.TAKEN

    def forget(self, replica: int) -> None:
        """The replica is gone, and all it held. O(pages known)."""
        known = self._known.pop(replica, None)
        if known is not None and known.held:
            others = ~(0b11 << 2 * replica)
            self._lanes = {key: left for key, lanes in self._lanes.items() if (left := lanes & others)}
        if known is not None:
            self._side = {
                component: {key: left for key, bits in pages.items() if (left := bits & ~(1 << replica))}
                for component, pages in self._side.items()
            }

    def depth(self, keys: Sequence[PageKey]) -> dict[int, Depth]:
        """How far each known replica has the history `keys`, a chain from the first page on.

        Looks up O(log len(keys)) pages while the replicas agree, at most twice that for each of them; and what the
        rules of its components need to be sure.
        """
        ends = self._ends(keys)
        depths = {}
        for replica in self._known:
            held = self._usable(replica, keys, ends[2 * replica])
            depths[replica] = Depth(min(ends[2 * replica + 1], held), held)
        return depths

    def _usable(self, replica: int, keys: Sequence[PageKey], held: int) -> int:
        rules, side = self._rules.get(replica, ()), self._known[replica].side
        if not all(side[rule.component] for rule in rules):
            return 0  # without a single page of it there is nothing to look for
        return usable(held, [self._side_rule(replica, rule, keys) for rule in rules])

    def _side_rule(self, replica: int, rule: ComponentRule, keys: Sequence[PageKey]) -> SideRule:
        pages = self._side.get(rule.component, {})
        return SideRule(rule.policy, lambda index: bool(pages.get(keys[index], 0) >> replica & 1))

    def _ends(self, keys: Sequence[PageKey]) -> dict[int, int]:
        """Where each lane ends in the history."""
        ends: dict[int, int] = {}
        pending = [(0, len(keys), sum(0b11 << 2 * replica for replica in self._known))]
        while pending:
            # `lanes` end somewhere from low to high: those that have the page in the middle there or after, the others
            # before it.
            low, high, lanes = pending.pop()
            if low == high:
                ends.update((lane, low) for lane in _bits(lanes))
                continue
            middle = (low + high + 1) // 2
            there = self._lanes.get(keys[middle - 1], 0) & lanes
            if there:
                pending.append((middle, high, there))
            if there != lanes:
                pending.append((low, middle - 1, lanes & ~there))
        return ends


def _set(lanes: dict[PageKey, int], lane: int, keys: Iterable[PageKey]) -> int:
    """Returns how many pages were not in `lane` before."""
    bit, fresh = 1 << lane, 0
    for key in keys:
        before = lanes.get(key, 0)
        if not before & bit:
            lanes[key] = before | bit
            fresh += 1
    return fresh


def _clear(lanes: dict[PageKey, int], lane: int, keys: Iterable[PageKey]) -> int:
    """Returns how many pages were in `lane` before. A page that is in no lane any more has no entry."""
    bit, gone = 1 << lane, 0
    for key in keys:
        before = lanes.get(key, 0)
        if before & bit:
            gone += 1
            if before == bit:
                del lanes[key]
            else:
                lanes[key] = before ^ bit
    return gone


def _bits(lanes: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while lanes:
        lowest = lanes & -lanes
        yield lowest.bit_length() - 1
        lanes ^= lowest
