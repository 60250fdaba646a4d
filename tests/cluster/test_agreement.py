import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratakv.cluster.agreement import (
    VECTOR_LENGTH,
    Divergence,
    LocalGroup,
    SlotTable,
    read,
)
from stratakv.storage.moves import PREFETCH_SLOTS, WRITE_SLOTS, Area, SlotProgress


def combine(tables, plan=7, copied=None):
    copied = copied or [0] * len(tables)
    vectors = [table.fill(plan, upto) for table, upto in zip(tables, copied, strict=True)]
    return read(np.minimum.reduce(vectors), plan)


slots = st.one_of(
    st.tuples(st.just(Area.PREFETCH), st.integers(0, PREFETCH_SLOTS - 1)),
    st.tuples(st.just(Area.WRITE), st.integers(0, WRITE_SLOTS - 1)),
)
# What one rank has done in one slot: pages, whether it ended, whether it drained.
rank_state = st.tuples(st.integers(0, 2**40), st.booleans(), st.booleans())


@st.composite
def replicas(draw):
    size = draw(st.integers(1, 8))
    states = st.lists(rank_state, min_size=size, max_size=size)
    cuts = draw(st.dictionaries(slots, st.tuples(states, st.booleans()), max_size=12))
    copied = draw(st.lists(st.integers(0, 2**40), min_size=size, max_size=size))
    return size, cuts, copied


@settings(deadline=None)
@given(replicas())
def test_the_minimum_says_what_each_field_means(replica):
    size, occupied, copied = replica
    tables = [SlotTable() for _ in range(size)]
    expected = {}
    for (area, slot), (states, cut) in occupied.items():
        reached = []
        for table, (done, ended, drained) in zip(tables, states, strict=True):
            operation = table.start(area, slot)
            if cut:
                table.cut(area, slot)
            operation.advance(done)
            if ended:
                operation.end()
            drained = drained and (ended or cut)
            if drained:
                operation.drain()
            reached.append((done, ended, drained))
        expected[area, slot] = SlotProgress(
            min(done for done, _, _ in reached),
            any(ended for _, ended, _ in reached),
            all(drained for _, _, drained in reached),
        )
    agreed = combine(tables, copied=copied)
    assert agreed.copied_upto == min(copied)
    for area in Area:
        for slot in range(PREFETCH_SLOTS if area is Area.PREFETCH else WRITE_SLOTS):
            assert agreed.slot(area, slot) == expected.get((area, slot), SlotProgress(0, False, False))


@given(slots, slots, st.integers(1, 1000))
def test_a_reused_slot_carries_nothing_of_its_last_occupant(one, other, done):
    table = SlotTable()
    old = table.start(*one)
    if other != one:
        table.start(*other).advance(5)
    old.advance(done)
    old.end()
    old.drain()
    assert combine([table]).slot(*one) == SlotProgress(done, True, True)
    table.release(*one)
    assert combine([table]).slot(*one) == SlotProgress(0, False, False)
    new = table.start(*one)
    old.advance(done + 1)
    old.end()
    old.drain()
    assert combine([table]).slot(*one) == SlotProgress(0, False, False)
    new.advance(3)
    assert combine([table]).slot(*one) == SlotProgress(3, False, False)
    if other != one:
        assert combine([table]).slot(*other) == SlotProgress(5, False, False)


def test_a_rank_that_has_just_started_holds_the_agreement_back():
    early, late = SlotTable(), SlotTable()
    operation = early.start(Area.PREFETCH, 0)
    operation.advance(9)
    operation.end()
    operation.drain()
    late.start(Area.PREFETCH, 0)
    assert combine([early, late]).slot(Area.PREFETCH, 0) == SlotProgress(0, True, False)


@pytest.mark.parametrize("plans", [(7, 8), (8, 7), (6, 7, 7), (8, 8)])
def test_a_divergence_names_the_plans(plans):
    minimum = np.minimum.reduce([SlotTable().fill(plan, 0) for plan in plans])
    with pytest.raises(Divergence, match=rf"plan 7 .* plans {min(plans)} to {max(plans)}"):
        read(minimum, 7)


def test_slots_are_linear():
    table = SlotTable()
    table.start(Area.WRITE, 3)
    with pytest.raises(ValueError, match="write slot 3 is started but was never released"):
        table.start(Area.WRITE, 3)
    with pytest.raises(ValueError, match="prefetch slot 64 does not exist"):
        table.start(Area.PREFETCH, PREFETCH_SLOTS)
    with pytest.raises(KeyError):
        table.release(Area.PREFETCH, 3)
    with pytest.raises(KeyError):
        table.cut(Area.PREFETCH, 3)
    with pytest.raises(IndexError):
        combine([table]).slot(Area.WRITE, WRITE_SLOTS)


def test_progress_only_grows_and_drains_last():
    table = SlotTable()
    operation = table.start(Area.PREFETCH, 1)
    operation.advance(4)
    with pytest.raises(ValueError, match="went back from 4 to 3"):
        operation.advance(3)
    with pytest.raises(RuntimeError, match="before it ended or was cut"):
        operation.drain()
    operation.end()
    operation.advance(4)
    with pytest.raises(ValueError, match="ended at 4"):
        operation.advance(5)
    operation.drain()


def test_a_cut_is_seen_by_the_operation_and_does_not_end_it():
    table = SlotTable()
    operation = table.start(Area.PREFETCH, 1)
    assert not operation.cut
    table.cut(Area.PREFETCH, 1)
    assert operation.cut
    operation.advance(2)  # a read that was under way when the cut came
    operation.drain()
    assert combine([table]).slot(Area.PREFETCH, 1) == SlotProgress(2, False, True)


def test_the_local_group_is_the_same_code_path():
    table, group = SlotTable(), LocalGroup()
    table.start(Area.PREFETCH, 5).advance(2)
    vector = table.fill(3, 11)
    assert vector.shape == (VECTOR_LENGTH,) and vector.dtype == np.int64
    agreed = read(group.all_reduce_min(vector).wait(), 3)
    assert (group.rank, group.size) == (0, 1)
    assert (agreed.plan_number, agreed.copied_upto) == (3, 11)
    assert agreed.slot(Area.PREFETCH, 5).done == 2


def test_a_filled_vector_does_not_change_any_more():
    table = SlotTable()
    operation = table.start(Area.PREFETCH, 0)
    vector = table.fill(1, 0)
    operation.advance(8)
    assert read(vector, 1).slot(Area.PREFETCH, 0).done == 0


def test_io_threads_report_while_plans_are_applied():
    table = SlotTable()
    operations = [table.start(Area.PREFETCH, slot) for slot in range(PREFETCH_SLOTS)]

    def run(operation):
        for done in range(1, 51):
            operation.advance(done)
        operation.end()
        operation.drain()

    threads = [threading.Thread(target=run, args=(operation,)) for operation in operations]
    for thread in threads:
        thread.start()
    for plan in range(100):
        seen = read(table.fill(plan, plan), plan)
        for slot in range(PREFETCH_SLOTS):
            progress = seen.slot(Area.PREFETCH, slot)
            # A thread counts, then ends, then drains: no vector may show a later fact without the earlier ones.
            assert not progress.drained or (progress.ended and progress.done == 50)
            assert not progress.ended or progress.done == 50
    for thread in threads:
        thread.join(30)
    final = combine([table])
    assert all(
        final.slot(Area.PREFETCH, slot) == SlotProgress(50, True, True) for slot in range(PREFETCH_SLOTS)
    )
