"""A hierarchy over an executor that is late and follows every byte: a slot holds the key of the page it is of."""

import hashlib
from dataclasses import dataclass

from stratakv.storage.hierarchy import Asked, Hierarchy, Lease
from stratakv.storage.moves import (
    Area,
    Copy,
    Cut,
    Direction,
    Order,
    Part,
    Progress,
    Read,
    Release,
    Restore,
    SlotProgress,
    Snapshot,
    Write,
)
from stratakv.storage.policies.eviction import EVICTION_POLICIES
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.pools import SlotPool
from stratakv.storage.restore import HitPolicy, Rule
from stratakv.storage.side_setup import CheckpointPools, SidePools, WindowPools
from stratakv.storage.tiers import Component, Tier
from stratakv.storage.tree import Tree

REACH = 2
"""Pages of the sliding window."""
CHUNK = 4
"""Pages that one forward computes at most, the one it begins in included."""


def history(symbols: str) -> list[bytes]:
    """Page keys of a history, one page per symbol."""
    keys, key = [], b""
    for symbol in symbols:
        key = hashlib.sha256(key + symbol.encode()).digest()
        keys.append(key)
    return keys


class Transfer:
    """A read or write in a slot, as far as it has got."""

    def __init__(self, order: Read | Write):
        self.order = order
        self.blocks = [
            (part.component, stamp.key, slot)
            for part in order.parts
            for stamp, slot in zip(part.stamps, part.host_slots, strict=True)
        ]
        assert self.blocks
        self.done = 0
        self.ended = self.cut = False

    def state(self) -> SlotProgress:
        return SlotProgress(self.done, self.ended, self.ended or self.cut)


class LateExecutor:
    """Moves contents, and reports the ends when told to. The store forgets and fails.

    `device[component]` and `host[component]` map slots to keys; a checkpoint on the device is its key in every place.
    `states` maps working slots to the key of the last page and the steps beyond it.
    """

    def __init__(self, unified: bool) -> None:
        self.device: dict[Component, dict[int, object]] = {component: {} for component in Component}
        if unified:
            self.device[Component.RECURRENT] = self.device[Component.FULL]
        self.host: dict[Component, dict[int, object]] = {component: {} for component in Component}
        self.states: dict[int, tuple[bytes, int]] = {}
        self.store: set[tuple[Component, bytes]] = set()
        self.queued: list[Order] = []
        self.executed = 0
        self.reported = 0
        self.transfers: dict[tuple[Area, int], Transfer] = {}
        self.seen: dict[tuple[Area, int], SlotProgress] = {}

    def submit(self, order: Order) -> None:
        self.queued.append(order)

    @property
    def copied_upto(self) -> int:
        return self.reported

    def slot(self, area: Area, slot: int) -> SlotProgress:
        return self.seen[area, slot]

    def progress(self) -> Progress:
        return self

    def execute(self) -> None:
        for order in self.queued:
            match order:
                case Copy():
                    self.copy(order)
                case Snapshot(state=state, places=places):
                    key, steps = self.states[state]
                    assert steps == 0, "a snapshot was taken between two boundaries"
                    self.device[Component.RECURRENT].update(dict.fromkeys(places, (key, "state")))
                case Restore(places=places, state=state):
                    self.states[state] = (self.checkpoint(places), 0)
                case Read(slot=slot):
                    self.occupy(Area.PREFETCH, slot, order)
                case Write(slot=slot):
                    self.occupy(Area.WRITE, slot, order)
                case Cut(slot=slot):
                    self.transfers[Area.PREFETCH, slot].cut = True
                case Release(area=area, slot=slot):
                    assert self.transfers.pop((area, slot)).state().drained
        self.queued.clear()

    def checkpoint(self, places: tuple[int, ...]) -> bytes:
        """The key of the checkpoint in `places`, which must be whole."""
        found = {self.device[Component.RECURRENT][place] for place in places}
        assert len(found) == 1, "a checkpoint is torn"
        key, what = found.pop()
        assert what == "state"
        return key

    def occupy(self, area: Area, slot: int, order: Read | Write) -> None:
        assert (area, slot) not in self.transfers
        self.transfers[area, slot] = Transfer(order)

    def copy(self, copy: Copy) -> None:
        device, host = self.device[copy.component], self.host[copy.component]
        each = len(copy.device_slots) // max(1, len(copy.host_slots))
        for number, on_host in enumerate(copy.host_slots):
            on_device = copy.device_slots[number * each : (number + 1) * each]
            if copy.component is Component.RECURRENT and copy.direction is Direction.LOAD:
                self.states[on_device[0]] = (host[on_host], 0)
            elif copy.direction is Direction.LOAD:
                device[on_device[0]] = host[on_host]
            elif copy.component is Component.RECURRENT:
                host[on_host] = self.checkpoint(on_device)
            else:
                host[on_host] = device[on_device[0]]
        self.executed = copy.number
        if copy.direction is Direction.BACKUP:
            assert [host[slot] for slot in copy.host_slots] == [stamp.key for stamp in copy.stamps]

    def transfer(self, transfer: Transfer, fails: bool) -> None:
        """One block of a read or write, if it is still going."""
        if transfer.ended or transfer.cut:
            return
        component, key, slot = transfer.blocks[transfer.done]
        reading = isinstance(transfer.order, Read)
        if fails or (reading and (component, key) not in self.store):
            transfer.ended = True
            return
        if reading:
            self.host[component][slot] = key
        else:
            assert self.host[component][slot] == key, "a wrong block would be stored"
            self.store.add((component, key))
        transfer.done += 1
        transfer.ended = transfer.done == len(transfer.blocks)

    def agree(self, copies: int) -> None:
        self.execute()
        self.reported = min(self.reported + copies, self.executed)
        self.seen = {key: transfer.state() for key, transfer in self.transfers.items()}


@dataclass(frozen=True)
class Shape:
    """What a hierarchy under test is made of. `sliding` and `recurrent` are (device, host) slots of the sides, None for
    a model without; `states` the working slots; `each` the page slots of a checkpoint in a unified buffer, 0 for a pool
    of its own."""

    device: int
    host: int
    backlog: int = 0
    sliding: tuple[int, int] | None = None
    recurrent: tuple[int, int] | None = None
    states: int = 4
    each: int = 0
    interval: int = 0
    write: str = "write_through"
    eviction: str = "lru"

    # Without a host tier for pages there is none for sides.


def make(shape: Shape) -> tuple[Hierarchy, LateExecutor]:
    executor = LateExecutor(unified=shape.each > 0)
    tree = Tree(EVICTION_POLICIES.get(shape.eviction)(), has_host=shape.host > 0)
    windows = checkpoints = None
    if shape.sliding is not None:
        device, host = shape.sliding[0], shape.sliding[1] if shape.host else 0
        pools = SlotPool("windows", device), SlotPool("windows on host", host)
        windows = WindowPools(HitPolicy(Rule.TRAILING, REACH), *pools, chunk_pages=CHUNK)
    if shape.recurrent is not None:
        device, host = shape.recurrent[0], shape.recurrent[1] if shape.host else 0
        own = None if shape.each else SlotPool("checkpoints", device)
        checkpoints = CheckpointPools(
            SlotPool("states", shape.states), own, SlotPool("checkpoints on host", host), shape.each
        )
    sides = SidePools(windows, checkpoints, shape.interval) if windows or checkpoints else None
    pools = SlotPool("device", shape.device), SlotPool("host", shape.host)
    write = WRITE_POLICIES.get(shape.write)()
    return Hierarchy(tree, *pools, write, executor, shape.backlog, sides), executor


class Request:
    """A request as a head drives it: whole pages at a time, or a part of the next."""

    def __init__(self, keys: list[bytes], lease: Lease):
        self.keys = keys
        self.lease = lease
        self.computed = lease.committed
        self.steps = 0
        """Steps beyond the last full page."""

    def forward(self, hierarchy: Hierarchy, executor: LateExecutor, pages: int, beyond: int = 0) -> bool:
        """Compute `pages` pages and `beyond` steps of the next, reading all that attention would and checking it.
        False when there is no room for its sides."""
        first = self.computed
        end = min(first + pages, len(self.keys))
        beyond = beyond if end < len(self.keys) else 0
        if end == first and not beyond:
            return True
        place = hierarchy.prepare(self.lease, first, end + (beyond > 0))
        if place is None:
            return False
        executor.execute()
        fresh = self.keys[first:end]
        self._full(executor, first, fresh)
        if hierarchy.sides.windows is not None:
            self._window(executor, place.window, first, end + (beyond > 0))
        if hierarchy.sides.checkpoints is not None:
            self._state(executor, place.state, first, end, beyond)
        self.computed, self.steps = end, (self.steps if end == first else 0) + beyond
        if fresh:
            hierarchy.commit(self.lease, fresh, at_boundary=not beyond)
        return True

    def _full(self, executor: LateExecutor, first: int, fresh: list[bytes]) -> None:
        device = executor.device[Component.FULL]
        for key, slot in zip(self.keys[:first], self.lease.slots, strict=False):
            assert device[slot] == key, "attention would read a wrong page"
        for number, key in enumerate(fresh, first):
            device[self.lease.slots[number]] = key

    def _window(self, executor: LateExecutor, window: tuple[int, ...], first: int, end: int) -> None:
        device, low = executor.device[Component.SLIDING], end - len(window)
        assert low <= max(0, first - REACH), "the window is too short"
        assert len(set(window)) == len(window)
        for number in range(max(0, first - REACH), first):
            assert device[window[number - low]] == self.keys[number], "attention would read a wrong window"
        for number in range(first, min(end, len(self.keys))):
            device[window[number - low]] = self.keys[number]

    def _state(self, executor: LateExecutor, slot: int, first: int, end: int, beyond: int) -> None:
        if first or self.steps:
            expected = (self.keys[first - 1] if first else b"", self.steps)
            assert executor.states[slot] == expected, "a mixer would go on from a wrong state"
        key = self.keys[end - 1] if end else b""
        executor.states[slot] = (key, (self.steps if end == first else 0) + beyond)


def settle(hierarchy: Hierarchy, executor: LateExecutor) -> None:
    """Until nothing is in flight."""
    while hierarchy.in_flight or executor.queued or hierarchy.writes.pending:
        for transfer in executor.transfers.values():
            while not (transfer.ended or transfer.cut):
                executor.transfer(transfer, fails=False)
        executor.agree(100)
        hierarchy.absorb()


def run(hierarchy: Hierarchy, executor: LateExecutor, symbols: str) -> tuple[int, int, tuple]:
    """One request from admission to its end, with every copy agreed; what it found: pages on the device, on the host,
    and why the others missed."""
    keys = history(symbols)
    admission = hierarchy.admit(keys, len(keys), Asked())
    assert admission is not None, "no room"
    request = Request(keys, admission.lease)
    while request.computed < len(keys):
        stop = hierarchy.next_stop(request.lease, request.computed) or len(keys)
        assert request.forward(hierarchy, executor, min(stop - request.computed, CHUNK - 1))
        executor.agree(100)
        hierarchy.absorb()
    hierarchy.release(request.lease)
    settle(hierarchy, executor)
    return admission.device_pages, admission.host_pages, admission.misses


def part_keys(part: Part) -> list[bytes]:
    return [stamp.key for stamp in part.stamps]


def resident(hierarchy: Hierarchy, page: int, component: Component, tier: Tier) -> bool:
    """Whether the state of `component` of `page` is in `tier`, by the books."""
    if component is Component.FULL:
        return hierarchy.tree.slot(page, tier) is not None
    side = next(side for side in hierarchy.sides.all if side.component is component)
    return page in (side.device if tier is Tier.DEVICE else side.host).slots
