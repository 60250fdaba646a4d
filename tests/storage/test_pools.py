import zlib

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stratakv.kernels.shapes import LayerShape
from stratakv.storage.header import BlockHeader, HeaderCleared, HeaderCorrupt
from stratakv.storage.layout import BlockLayout, Group
from stratakv.storage.moves import PageStamp
from stratakv.storage.pools import HostBlocks, Owner, SlotError, SlotPool
from stratakv.storage.tiers import Component

CAPACITY = 12
OWNERS = st.sampled_from([Owner.TREE, Owner.REQUEST, Owner.FLIGHT])
SLOTS = st.lists(st.integers(-2, CAPACITY + 1), max_size=6)


class PoolMachine(RuleBasedStateMachine):
    """Any call sequence, right or wrong, against a dict of slot to owner."""

    def __init__(self):
        super().__init__()
        self.pool = SlotPool("model", CAPACITY)
        self.owners = dict.fromkeys(range(CAPACITY), Owner.FREE)

    def held_by(self, owner):
        return [slot for slot, holder in self.owners.items() if holder is owner]

    @rule(n=st.integers(0, CAPACITY + 1), owner=OWNERS)
    def take(self, n, owner):
        slots = self.pool.take(n, owner)
        if n > len(self.held_by(Owner.FREE)):
            assert slots is None
            return
        assert len(set(slots)) == n
        assert all(self.owners[slot] is Owner.FREE for slot in slots)
        self.owners.update(dict.fromkeys(slots, owner))

    @rule(slots=SLOTS, source=OWNERS, to=st.sampled_from(list(Owner)))
    def move_any(self, slots, source, to):
        self.act(slots, source, to)

    @rule(source=OWNERS, to=st.sampled_from(list(Owner)), data=st.data())
    def move_own(self, source, to, data):
        owned = self.held_by(source)
        count = data.draw(st.integers(0, len(owned)))
        self.act(data.draw(st.permutations(owned))[:count], source, to)

    def act(self, slots, source, target):
        right = len(set(slots)) == len(slots) and all(self.owners.get(slot) is source for slot in slots)
        try:
            if target is Owner.FREE:
                self.pool.give(iter(slots), source)
            else:
                self.pool.move(iter(slots), source, target)
        except SlotError:
            assert not right
        else:
            assert right
            self.owners.update(dict.fromkeys(slots, target))

    @invariant()
    def books_agree(self):
        self.pool.check()
        for owner in Owner:
            assert self.pool.count(owner) == len(self.held_by(owner))
        assert self.pool.free == self.pool.count(Owner.FREE)
        assert sum(self.pool.count(owner) for owner in Owner) == self.pool.capacity == CAPACITY


PoolMachine.TestCase.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)
TestPoolMachine = PoolMachine.TestCase


def test_take_is_all_or_none():
    pool = SlotPool("device", 3)
    assert pool.take(0, Owner.TREE) == []
    assert pool.take(4, Owner.TREE) is None
    assert pool.take(2, Owner.TREE) == [0, 1]
    assert pool.take(2, Owner.TREE) is None
    assert pool.free == 1


def test_neighbours_come_back_as_neighbours():
    pool = SlotPool("device", 8)
    taken = pool.take(8, Owner.REQUEST)
    pool.give(taken[4:7], Owner.REQUEST)
    assert pool.take(3, Owner.REQUEST) == [4, 5, 6]


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([0, 5], "pool host: slot 5 belongs to FREE, not to TREE"),
        ([0, 2], "pool host: slot 2 belongs to FLIGHT, not to TREE"),
        ([0, 1, 0], "pool host: slot 0 is named twice"),
        ([0, -1], "pool host: there is no slot -1"),
        ([0, 8], "pool host: there is no slot 8"),
    ],
)
@pytest.mark.parametrize("act", ["give", "move"])
def test_a_wrong_slot_is_named_and_nothing_changes(slots, message, act):
    pool = SlotPool("host", 8)
    pool.take(2, Owner.TREE)
    pool.take(1, Owner.FLIGHT)
    with pytest.raises(SlotError, match=message):
        if act == "give":
            pool.give(slots, Owner.TREE)
        else:
            pool.move(slots, Owner.TREE, Owner.REQUEST)
    assert [pool.count(owner) for owner in Owner] == [5, 2, 0, 1]
    pool.check()


def test_double_free():
    pool = SlotPool("host", 2)
    slots = pool.take(1, Owner.REQUEST)
    pool.give(slots, Owner.REQUEST)
    with pytest.raises(SlotError, match="slot 0 belongs to FREE, not to REQUEST"):
        pool.give(slots, Owner.REQUEST)


def test_free_is_reached_by_take_and_give_alone():
    pool = SlotPool("host", 2)
    slots = pool.take(1, Owner.TREE)
    for wrong in (
        lambda: pool.take(1, Owner.FREE),
        lambda: pool.give([1], Owner.FREE),
        lambda: pool.move(slots, Owner.TREE, Owner.FREE),
        lambda: pool.move([1], Owner.FREE, Owner.TREE),
    ):
        with pytest.raises(SlotError):
            wrong()
    pool.check()
    assert pool.count(Owner.TREE) == 1


def test_bad_numbers():
    with pytest.raises(ValueError, match="capacity is -1"):
        SlotPool("host", -1)
    with pytest.raises(ValueError, match="cannot take -1 slots"):
        SlotPool("host", 1).take(-1, Owner.TREE)


def test_check_finds_cooked_books():
    for cook in (
        lambda pool: pool._free.append(pool._free[0]),
        lambda pool: pool._free.pop(),
        lambda pool: pool._owners.__setitem__(3, Owner.TREE),
        lambda pool: pool._counts.__setitem__(Owner.TREE, 1),
    ):
        pool = SlotPool("host", 4)
        pool.check()
        cook(pool)
        with pytest.raises(SlotError, match="pool host"):
            pool.check()


LAYOUT = BlockLayout([LayerShape(2, 3, 5)], page_size=4, itemsize=4, group=Group(1, 2))
STAMP = PageStamp(b"k" * 32, b"p" * 32, 7, b"")


def test_blocks_lie_over_the_buffer():
    buffer = bytearray(3 * LAYOUT.block_bytes + 10)
    blocks = HostBlocks(buffer, 3, LAYOUT)
    assert blocks.array.shape == (3, LAYOUT.block_bytes)
    assert blocks.payload.shape == (3, LAYOUT.payload_bytes)
    assert blocks.slots == 3
    blocks.payload[1] = 9
    start = LAYOUT.block_bytes + LAYOUT.payload_offset
    assert bytes(buffer) == bytes(start) + b"\x09" * LAYOUT.payload_bytes + bytes(
        len(buffer) - start - LAYOUT.payload_bytes
    )


def test_a_short_buffer_states_both_numbers():
    needed = 3 * LAYOUT.block_bytes
    with pytest.raises(ValueError, match=f"{needed} bytes; the buffer has {needed - 1}"):
        HostBlocks(bytearray(needed - 1), 3, LAYOUT)


def test_a_read_only_buffer():
    with pytest.raises(ValueError, match="must be writable"):
        HostBlocks(memoryview(bytes(LAYOUT.block_bytes)), 1, LAYOUT)


def test_a_block_speaks_only_while_it_is_sealed():
    blocks = HostBlocks(bytearray(2 * LAYOUT.block_bytes), 2, LAYOUT)
    with pytest.raises(HeaderCleared):
        blocks.header(1)
    blocks.payload[1] = np.arange(LAYOUT.payload_bytes) % 251
    header = BlockHeader.of(STAMP, LAYOUT, b"i" * 32, blocks.checksum(1))
    blocks.seal(1, header)
    assert blocks.header(1) == header
    assert header.checksum == zlib.crc32(bytes(i % 251 for i in range(LAYOUT.payload_bytes)))
    with pytest.raises(HeaderCleared):
        blocks.header(0)
    blocks.clear(1)
    with pytest.raises(HeaderCleared):
        blocks.header(1)
    assert blocks.checksum(1) == header.checksum


def test_a_header_touches_no_payload():
    blocks = HostBlocks(bytearray(b"\x55" * (2 * LAYOUT.block_bytes)), 2, LAYOUT)
    blocks.clear(0)
    blocks.seal(0, BlockHeader.of(STAMP, LAYOUT, b"i" * 32, None))
    assert (blocks.payload == 0x55).all()
    assert (blocks.array[1] == 0x55).all()


def test_a_changed_header_is_corrupt():
    blocks = HostBlocks(bytearray(LAYOUT.block_bytes), 1, LAYOUT)
    blocks.seal(0, BlockHeader.of(STAMP, LAYOUT, b"i" * 32, None))
    blocks.array[0, LAYOUT.header_offset + 100] ^= 1
    with pytest.raises(HeaderCorrupt):
        blocks.header(0)


def test_a_header_of_another_layout_cannot_seal():
    blocks = HostBlocks(bytearray(LAYOUT.block_bytes), 1, LAYOUT)
    other = BlockLayout(LAYOUT.shapes, 4, 4, Component.SLIDING, Group(0, 2))
    with pytest.raises(ValueError, match="sliding g0of2"):
        blocks.seal(0, BlockHeader.of(STAMP, other, b"i" * 32, None))
    with pytest.raises(HeaderCleared):
        blocks.header(0)


@pytest.mark.parametrize("slot", [-1, 1])
def test_a_block_that_is_not_there(slot):
    blocks = HostBlocks(bytearray(LAYOUT.block_bytes), 1, LAYOUT)
    with pytest.raises(IndexError, match=f"no block {slot}"):
        blocks.clear(slot)
