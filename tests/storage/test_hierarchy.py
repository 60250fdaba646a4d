"""Drives the hierarchy with random requests and a late executor, follows every byte, and checks every invariant
each step: models with full attention alone, with windows, with recurrent state, with both, and a unified buffer."""

import pytest
from hierarchy_fakes import CHUNK, REACH, Request, Shape, history, make, resident, settle
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratakv.storage.hierarchy import Asked
from stratakv.storage.hierarchy_check import hierarchy_problems, idle_problems
from stratakv.storage.policies.eviction import EVICTION_POLICIES
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.pools import Owner
from stratakv.storage.prefetch import Prefetch, Stretch
from stratakv.storage.restore import EXACT, Presence, restorable
from stratakv.storage.tiers import Component, Tier

SHAPES = st.builds(
    Shape,
    device=st.sampled_from([2, 4, 5, 6, 9]),
    host=st.sampled_from([0, 4, 10, 14]),
    backlog=st.sampled_from([0, 2, 6]),
    sliding=st.none() | st.tuples(st.integers(8, 16), st.sampled_from([0, 3, 8])),
    recurrent=st.none() | st.tuples(st.integers(0, 4), st.sampled_from([0, 2, 6])),
    states=st.integers(1, 3),
    each=st.sampled_from([0, 0, 1, 2]),
    interval=st.sampled_from([0, 2]),
    write=st.sampled_from(WRITE_POLICIES.names()),
    eviction=st.sampled_from(EVICTION_POLICIES.names()),
)


SYMBOLS = st.text("ab", min_size=1, max_size=3) | st.sampled_from(["aaa", "aaab", "abab", "bbbb", "babba"])


class HierarchyMachine(RuleBasedStateMachine):
    @initialize(shape=SHAPES)
    def start(self, shape: Shape) -> None:
        self.hierarchy, self.executor = make(shape)
        self.requests: list[Request] = []
        self.forgotten: set[tuple[Component, bytes]] = set()
        self.claimed: list[Prefetch] = []

    @rule(symbols=SYMBOLS, spare=st.integers(0, 2), reuse_all=st.booleans(),
          priority=st.integers(-2, 2))  # fmt: skip
    def admit(self, symbols: str, spare: int, reuse_all: bool, priority: int) -> None:
        keys = history(symbols)
        reusable = keys if reuse_all else keys[:-1]
        expected = self.linear_match(reusable)
        before = self.fingerprint()
        assert len(self.hierarchy.find(reusable).path) == sum(expected)
        assert self.fingerprint() == before, "a match changed something"
        admission = self.hierarchy.admit(reusable, len(keys) + 1, Asked(b"", spare, 0, priority))
        if admission is None:
            assert self.fingerprint() == before
            return
        assert (admission.device_pages, admission.host_pages) == expected
        assert len(admission.misses) == len(reusable) - sum(expected)
        assert len(admission.lease.slots) == len(keys) + 1
        self.requests.append(Request(keys, admission.lease))

    def fingerprint(self) -> tuple[object, ...]:
        hierarchy = self.hierarchy
        pools = [hierarchy.room.device, hierarchy.room.host]
        pools += [tier.book for side in hierarchy.sides.all for tier in (side.device, side.host)]
        counts = [pool.count(owner) for pool in pools for owner in Owner]
        return len(hierarchy.tree), hierarchy.tree.holds, hierarchy.room.on_device, counts

    def linear_match(self, keys: list[bytes]) -> tuple[int, int]:
        """What can be used of `keys`, worked out page by page and with the rules as restore.py has them."""
        tree = self.hierarchy.tree
        path = []
        for key in keys:
            page = tree.find(key)
            if page is None:
                break
            path.append(page)
        presences = [
            Presence(side.policy, [side.held(page) for page in path]) for side in self.hierarchy.sides.all
        ]
        usable = restorable(len(path), presences).longest
        device = sum(tree.slot(page, Tier.DEVICE) is not None for page in path[:usable])
        return device, usable - device

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), pages=st.integers(0, 3), beyond=st.integers(0, 1), stops=st.booleans())
    def forward(self, data: st.DataObject, pages: int, beyond: int, stops: bool) -> None:
        """A step: copies first, then the request reads all it has and fills pages."""
        request = data.draw(st.sampled_from(self.requests))
        stop = self.hierarchy.next_stop(request.lease, request.computed)
        if stops and stop is not None and stop <= request.computed + pages:
            pages, beyond = stop - request.computed, 0
        if not request.forward(self.hierarchy, self.executor, pages, beyond):
            assert self.hierarchy.in_flight, "a request sits out with nothing to wait for"

    @rule(symbols=SYMBOLS, chunk=st.integers(1, CHUNK - 1), agreed=st.booleans(), then=SYMBOLS)
    def whole(self, symbols: str, chunk: int, agreed: bool, then: str) -> None:
        """A request from its admission to its end, as far as there is room, and one more turn of the conversation."""
        for keys in (history(symbols), history(symbols + then)):
            self.hierarchy.run_ahead(2)
            admission = self.hierarchy.admit(keys[:-1], len(keys), Asked())
            if admission is None:
                return
            request = Request(keys, admission.lease)
            going = True
            while going and request.computed < len(keys):
                stop = self.hierarchy.next_stop(request.lease, request.computed) or len(keys)
                going = request.forward(self.hierarchy, self.executor, min(stop - request.computed, chunk))
                if agreed:
                    self.agree(100)
            self.hierarchy.release(request.lease)
            self.sound()
        if agreed:
            self.settle()

    @rule()
    def settle(self) -> None:
        settle(self.hierarchy, self.executor)

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

    @rule(symbols=SYMBOLS, minimum=st.integers(1, 3), sides=st.booleans())
    def prefetch(self, symbols: str, minimum: int, sides: bool) -> None:
        keys = history(symbols)
        match = self.hierarchy.tree.match(keys)
        wanted = {}
        for side in self.hierarchy.sides.all if sides else ():
            reach = 1 if side.policy == EXACT else REACH
            wanted[side.component] = range(max(0, len(keys) - reach), len(keys))
        if wanted or match.held < len(keys):
            stretch = Stretch(keys, match.held, len(keys), b"", wanted)
            prefetch = self.hierarchy.prefetches.start(match.page, stretch, minimum)
            assert prefetch is None or wanted or len(prefetch.keys) >= minimum
            if prefetch is not None:
                self.claimed.append(prefetch)

    @precondition(lambda self: any(not prefetch.final for prefetch in self.claimed))
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        going = [prefetch for prefetch in self.claimed if not prefetch.final]
        prefetch = data.draw(st.sampled_from(going))
        self.hierarchy.prefetches.join(prefetch)
        self.claimed.append(prefetch)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        """A request that waited for it is admitted, or gone."""
        self.hierarchy.prefetches.let_go(self.claimed.pop(data.draw(st.integers(0, len(self.claimed) - 1))))

    @invariant()
    def what_was_brought_for_a_waiting_request_is_here(self) -> None:
        for prefetch in self.claimed:
            if prefetch.final:
                for key in prefetch.keys[: prefetch.landed]:
                    assert self.hierarchy.tree.find(key) is not None
                if prefetch.complete:
                    for side in self.hierarchy.sides.all:
                        for key in prefetch.side_keys.get(side.component, ()):
                            page = self.hierarchy.tree.find(key)
                            assert page is not None and side.held(page)

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

    @rule(symbols=SYMBOLS, component=st.sampled_from(Component))
    def store_forgets(self, symbols: str, component: Component) -> None:
        """Somebody else collected it; that the tree thinks otherwise for a while is harmless."""
        self.executor.store.discard((component, history(symbols)[-1]))
        self.forgotten.add((component, history(symbols)[-1]))

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
    def every_resident_block_holds_its_bytes(self) -> None:
        hierarchy, executor = self.hierarchy, self.executor
        key_of = hierarchy.tree.columns.key
        unsent = {place for order in executor.queued if hasattr(order, "places") for place in order.places}
        for page in range(1, len(key_of)):
            if not key_of[page]:
                continue
            for tier, contents in ((Tier.DEVICE, executor.device), (Tier.HOST, executor.host)):
                if resident(hierarchy, page, Component.FULL, tier):
                    slot = hierarchy.tree.slot(page, tier)
                    assert contents[Component.FULL][slot] == key_of[page]
            if hierarchy.tree.columns.stored[page]:
                assert (Component.FULL, key_of[page]) in executor.store | self.forgotten
        for side in hierarchy.sides.all:
            for page, slot in side.host.slots.items():
                assert executor.host[side.component][slot] == key_of[page]
            for page, slot in side.device.slots.items():
                places = side.device.book.places(slot)
                if side.component is Component.SLIDING:
                    assert executor.device[side.component][slot] == key_of[page]
                elif not unsent.intersection(places):
                    assert executor.checkpoint(places) == key_of[page]
            for page in side.stored:
                assert (side.component, key_of[page]) in executor.store | self.forgotten

    def teardown(self) -> None:
        for request in self.requests:
            self.hierarchy.release(request.lease)
        settle(self.hierarchy, self.executor)
        for prefetch in self.claimed:
            self.hierarchy.prefetches.let_go(prefetch)
        assert idle_problems(self.hierarchy) == []


HierarchyMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
TestHierarchy = HierarchyMachine.TestCase


@pytest.mark.full
class TestHierarchyAtLength(HierarchyMachine.TestCase):
    settings = settings(max_examples=3000, stateful_step_count=60, deadline=None)
