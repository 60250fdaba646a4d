"""Drives the hierarchy with random requests and a late executor, follows every byte, and checks every invariant
each step."""

import hashlib
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratakv.storage.hierarchy import Hierarchy, Lease
from stratakv.storage.hierarchy_check import hierarchy_problems, idle_problems
from stratakv.storage.moves import (
    Area,
    Copy,
    Cut,
    Direction,
    Order,
    Progress,
    Read,
    Release,
    SlotProgress,
    Write,
)
from stratakv.storage.policies.eviction import EVICTION_POLICIES
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.pools import SlotPool
from stratakv.storage.tiers import Miss, Tier
from stratakv.storage.tree import Tree


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
        self.done = 0
        self.ended = self.cut = False

    def state(self) -> SlotProgress:
        return SlotProgress(self.done, self.ended, self.ended or self.cut)


class LateExecutor:
    """Moves contents, a dict slot -> page key per tier, and reports the ends when told to. The store forgets and
    fails."""

    def __init__(self) -> None:
        self.contents: dict[Tier, dict[int, bytes]] = {Tier.DEVICE: {}, Tier.HOST: {}}
        self.store: set[bytes] = set()
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
                case Read(slot=slot):
                    self.occupy(Area.PREFETCH, slot, order)
                case Write(slot=slot):
                    self.occupy(Area.WRITE, slot, order)
                case Cut(slot=slot):
                    self.transfers[Area.PREFETCH, slot].cut = True
                case Release(area=area, slot=slot):
                    assert self.transfers.pop((area, slot)).state().drained
        self.queued.clear()

    def occupy(self, area: Area, slot: int, order: Read | Write) -> None:
        assert (area, slot) not in self.transfers
        self.transfers[area, slot] = Transfer(order)

    def copy(self, copy: Copy) -> None:
        device, host = self.contents[Tier.DEVICE], self.contents[Tier.HOST]
        for on_device, on_host in zip(copy.device_slots, copy.host_slots, strict=True):
            if copy.direction is Direction.LOAD:
                device[on_device] = host[on_host]
            else:
                host[on_host] = device[on_device]
        self.executed = copy.number
        if copy.direction is Direction.BACKUP:
            assert [host[slot] for slot in copy.host_slots] == [stamp.key for stamp in copy.stamps]

    def transfer(self, transfer: Transfer, fails: bool) -> None:
        """One page of a read or write, if it is still going."""
        if transfer.ended or transfer.cut:
            return
        order, host = transfer.order, self.contents[Tier.HOST]
        key, slot = order.stamps[transfer.done].key, order.host_slots[transfer.done]
        if fails or (isinstance(order, Read) and key not in self.store):
            transfer.ended = True
            return
        if isinstance(order, Read):
            host[slot] = key
        else:
            assert host[slot] == key, "a wrong page would be stored"
            self.store.add(key)
        transfer.done += 1
        transfer.ended = transfer.done == len(order.stamps)

    def agree(self, copies: int) -> None:
        self.execute()
        self.reported = min(self.reported + copies, self.executed)
        self.seen = {key: transfer.state() for key, transfer in self.transfers.items()}


class Request:
    def __init__(self, keys: list[bytes], lease: Lease):
        self.keys = keys
        self.lease = lease
        self.computed = lease.committed


def make(device: int, host: int, backlog: int = 0) -> tuple[Hierarchy, LateExecutor]:
    executor = LateExecutor()
    tree = Tree(EVICTION_POLICIES.get("lru")(), has_host=host > 0)
    pools = SlotPool("device", device), SlotPool("host", host)
    return Hierarchy(tree, *pools, WRITE_POLICIES.get("write_through")(), executor, backlog), executor


class HierarchyMachine(RuleBasedStateMachine):
    @initialize(device=st.integers(2, 10), host=st.integers(0, 12), backlog=st.sampled_from([0, 2, 6]))
    def start(self, device: int, host: int, backlog: int) -> None:
        self.hierarchy, self.executor = make(device, host, backlog)
        self.requests: list[Request] = []
        self.forgotten: set[bytes] = set()

    @rule(symbols=st.text("ab", min_size=1, max_size=8), spare=st.integers(0, 2), reuse_all=st.booleans())
    def admit(self, symbols: str, spare: int, reuse_all: bool) -> None:
        keys = history(symbols)
        reusable = keys if reuse_all else keys[:-1]
        expected = self.linear_match(reusable)
        before = (len(self.hierarchy.tree), self.hierarchy.room.on_device)
        admission = self.hierarchy.admit(reusable, len(keys) + 1, b"", spare)
        if admission is None:
            assert (len(self.hierarchy.tree), self.hierarchy.room.on_device) == before
            return
        assert (admission.device_pages, admission.host_pages) == expected
        assert len(admission.misses) == len(reusable) - sum(expected)
        assert len(admission.lease.slots) == len(keys) + 1
        self.requests.append(Request(keys, admission.lease))

    def linear_match(self, keys: list[bytes]) -> tuple[int, int]:
        tree, device, held = self.hierarchy.tree, 0, 0
        for key in keys:
            page = tree.find(key)
            if page is None:
                break
            held += 1
            device += tree.slot(page, Tier.DEVICE) is not None
        return device, held - device

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), pages=st.integers(1, 4))
    def forward(self, data: st.DataObject, pages: int) -> None:
        """A step: copies first, then the request reads all it has and fills pages."""
        request = data.draw(st.sampled_from(self.requests))
        self.executor.execute()
        device = self.executor.contents[Tier.DEVICE]
        for key, slot in zip(request.keys[: request.computed], request.lease.slots, strict=False):
            assert device[slot] == key, "attention would read a wrong page"
        fresh = request.keys[request.computed : request.computed + pages]
        for index, key in enumerate(fresh, request.computed):
            device[request.lease.slots[index]] = key
        request.computed += len(fresh)
        self.hierarchy.commit(request.lease, fresh)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        room = self.hierarchy.room.on_device
        assert self.hierarchy.grow(request.lease) == (room > 0)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        self.requests.remove(request)
        self.hierarchy.release(request.lease)

    @rule(symbols=st.text("ab", min_size=1, max_size=8), minimum=st.integers(1, 3))
    def prefetch(self, symbols: str, minimum: int) -> None:
        keys = history(symbols)
        match = self.hierarchy.tree.match(keys)
        missing = keys[match.held :]
        if missing:
            prefetch = self.hierarchy.prefetches.start(match.page, missing, b"", minimum)
            assert prefetch is None or len(prefetch.keys) >= minimum

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        if self.hierarchy.prefetches.active:
            self.hierarchy.prefetches.stop(data.draw(st.sampled_from(self.hierarchy.prefetches.active)))

    @rule(data=st.data(), pages=st.integers(1, 4), fails=st.booleans())
    def transfer(self, data: st.DataObject, pages: int, fails: bool) -> None:
        self.executor.execute()
        if self.executor.transfers:
            transfer = data.draw(st.sampled_from(list(self.executor.transfers.values())))
            for page in range(pages):
                self.executor.transfer(transfer, fails and page == pages - 1)

    @rule(symbols=st.text("ab", min_size=1, max_size=6))
    def store_forgets(self, symbols: str) -> None:
        """Somebody else collected it; that the tree thinks otherwise for a while is harmless."""
        self.executor.store.discard(history(symbols)[-1])
        self.forgotten.add(history(symbols)[-1])

    @rule(count=st.integers(1, 3))
    def agree(self, count: int) -> None:
        self.executor.agree(count)
        self.hierarchy.absorb()

    @rule(wanted=st.integers(1, 8))
    def run_ahead(self, wanted: int) -> None:
        self.hierarchy.run_ahead(wanted)

    @rule(pages=st.integers(1, 3))
    def reclaim(self, pages: int) -> None:
        if self.hierarchy.room.reclaim(pages):
            assert self.hierarchy.room.on_device >= pages

    @invariant()
    def sound(self) -> None:
        assert hierarchy_problems(self.hierarchy) == []

    @invariant()
    def every_resident_page_holds_its_bytes(self) -> None:
        tree, contents = self.hierarchy.tree, self.executor.contents
        for page in range(1, len(tree.columns.key)):
            for tier in (Tier.DEVICE, Tier.HOST):
                slot = tree.slot(page, tier) if tree.columns.key[page] else None
                if slot is not None:
                    assert contents[tier][slot] == tree.columns.key[page]
            if tree.columns.key[page] and tree.columns.stored[page]:
                assert tree.columns.key[page] in self.executor.store | self.forgotten

    def teardown(self) -> None:
        for request in self.requests:
            self.hierarchy.release(request.lease)
        while self.hierarchy.in_flight or self.hierarchy.writes.pending or self.executor.queued:
            for transfer in self.executor.transfers.values():
                self.executor.transfer(transfer, fails=False)
            self.agree(100)
        assert idle_problems(self.hierarchy) == []


HierarchyMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestHierarchy = HierarchyMachine.TestCase


def run(hierarchy: Hierarchy, executor: LateExecutor, symbols: str) -> tuple[int, int, dict[Miss, int]]:
    """One request from admission to its end, with every copy agreed; what it found (device, host, misses)."""
    keys = history(symbols)
    admission = hierarchy.admit(keys, len(keys), b"")
    assert admission is not None, "no room"
    executor.execute()
    for slot, key in zip(admission.lease.slots, keys, strict=True):
        executor.contents[Tier.DEVICE].setdefault(slot, key)
        executor.contents[Tier.DEVICE][slot] = key
    hierarchy.commit(admission.lease, keys[admission.lease.committed :])
    hierarchy.release(admission.lease)
    while hierarchy.in_flight or executor.queued:
        for transfer in executor.transfers.values():
            executor.transfer(transfer, fails=False)
        executor.agree(100)
        hierarchy.absorb()
    return admission.device_pages, admission.host_pages, dict(Counter(admission.misses))


def test_a_history_that_left_the_device_comes_back_from_host() -> None:
    hierarchy, executor = make(device=4, host=16)
    assert run(hierarchy, executor, "abc") == (0, 0, {Miss.NEVER_SEEN: 3})
    assert run(hierarchy, executor, "abc") == (3, 0, {})
    run(hierarchy, executor, "bcda")
    assert run(hierarchy, executor, "abc") == (0, 3, {})
    assert hierarchy.copies.loaded == 3


def test_a_cold_history_drains_from_its_tail() -> None:
    hierarchy, executor = make(device=6, host=16)
    run(hierarchy, executor, "abcd")
    run(hierarchy, executor, "bbbb")
    assert run(hierarchy, executor, "abcd")[:2] == (2, 2)


def test_without_a_host_tier_pages_leave_for_good_and_the_miss_says_so() -> None:
    hierarchy, executor = make(device=4, host=0)
    run(hierarchy, executor, "abc")
    run(hierarchy, executor, "bcda")
    assert run(hierarchy, executor, "abc") == (0, 0, {Miss.EVICTED: 3})


def test_what_is_dropped_for_want_of_host_room_is_booked_so() -> None:
    hierarchy, executor = make(device=4, host=1)
    run(hierarchy, executor, "ab")
    assert hierarchy.room.reclaim(4)
    assert run(hierarchy, executor, "ab") == (1, 0, {Miss.NO_HOST_ROOM: 1})


def test_a_page_in_flight_is_joined_and_not_loaded_twice() -> None:
    hierarchy, executor = make(device=8, host=16)
    run(hierarchy, executor, "ab")
    run(hierarchy, executor, "bbbbbbbb")
    keys = history("ab")
    first, second = hierarchy.admit(keys, 2, b""), hierarchy.admit(keys, 2, b"")
    assert first and second and first.lease.slots == second.lease.slots
    assert hierarchy.copies.loaded == 0 and len(hierarchy.copies.operations) == 1


def test_retraction_and_resume_count_one_hit() -> None:
    hierarchy, executor = make(device=8, host=16)
    run(hierarchy, executor, "ab")
    keys = history("ab")
    admission = hierarchy.admit(keys, 2, b"")
    assert admission
    hierarchy.release(admission.lease)
    again = hierarchy.admit(keys, 2, b"", counted=admission.lease.counted)
    assert again
    page = hierarchy.tree.find(keys[1])
    assert page is not None and hierarchy.tree.columns.hits[page] == 2


def test_a_history_that_left_the_replica_comes_back_from_the_store() -> None:
    hierarchy, executor = make(device=4, host=8, backlog=8)
    run(hierarchy, executor, "abc")
    assert set(history("abc")) <= executor.store
    for symbols in ("bbca", "ccca", "ddda"):
        run(hierarchy, executor, symbols)
    keys = history("abc")
    assert hierarchy.tree.match(keys).held == 0
    prefetch = hierarchy.prefetches.start(0, keys, b"", minimum=1)
    assert prefetch and hierarchy.prefetches.bringing(keys[2]) is prefetch
    while not prefetch.final:
        executor.execute()
        for transfer in executor.transfers.values():
            executor.transfer(transfer, fails=False)
        executor.agree(100)
        hierarchy.absorb()
    assert prefetch.landed == 3
    assert run(hierarchy, executor, "abc") == (0, 3, {})


def test_the_deepest_queued_writes_go_first_when_the_queue_is_full() -> None:
    hierarchy, executor = make(device=8, host=8, backlog=2)
    run(hierarchy, executor, "abcd")
    assert executor.store == set(history("ab"))
    assert hierarchy.writes.dropped == 2


def test_a_page_that_is_being_written_keeps_its_host_slot() -> None:
    hierarchy, executor = make(device=2, host=2, backlog=2)
    for symbols in ("ab", "ba"):
        keys = history(symbols)
        admission = hierarchy.admit(keys, 2, b"")
        assert admission
        executor.contents[Tier.DEVICE].update(zip(admission.lease.slots, keys, strict=True))
        hierarchy.commit(admission.lease, keys)
        hierarchy.release(admission.lease)
        executor.agree(100)
        hierarchy.absorb()
        executor.execute()
    assert hierarchy.tree.match(history("ab")).held == 2 and hierarchy.writes.in_flight == 1
    for transfer in list(executor.transfers.values()):
        executor.transfer(transfer, fails=False)
        executor.transfer(transfer, fails=False)
    assert executor.store == set(history("ab"))
