"""What the hierarchy does with full pages, case by case."""

from collections import Counter

from hierarchy_fakes import Shape, history, make, run, settle

from stratakv.storage.hierarchy import Asked
from stratakv.storage.prefetch import Stretch
from stratakv.storage.tiers import Component, Miss


def stored(executor) -> set[bytes]:
    return {key for component, key in executor.store if component is Component.FULL}


def found(hierarchy, executor, symbols: str) -> tuple[int, int, dict[Miss, int]]:
    device, host, misses = run(hierarchy, executor, symbols)
    return device, host, dict(Counter(misses))


def test_a_history_that_left_the_device_comes_back_from_host() -> None:
    hierarchy, executor = make(Shape(device=4, host=16))
    assert found(hierarchy, executor, "abc") == (0, 0, {Miss.NEVER_SEEN: 3})
    assert found(hierarchy, executor, "abc") == (3, 0, {})
    run(hierarchy, executor, "bcda")
    assert found(hierarchy, executor, "abc") == (0, 3, {})
    assert hierarchy.pages.loaded == 3


def test_a_cold_history_drains_from_its_tail() -> None:
    hierarchy, executor = make(Shape(device=6, host=16))
    run(hierarchy, executor, "abcd")
    run(hierarchy, executor, "bbbb")
    assert run(hierarchy, executor, "abcd")[:2] == (2, 2)


def test_without_a_host_tier_pages_leave_for_good_and_the_miss_says_so() -> None:
    hierarchy, executor = make(Shape(device=4, host=0))
    run(hierarchy, executor, "abc")
    run(hierarchy, executor, "bcda")
    assert found(hierarchy, executor, "abc") == (0, 0, {Miss.EVICTED: 3})


def test_what_is_dropped_for_want_of_host_room_is_booked_so() -> None:
    hierarchy, executor = make(Shape(device=4, host=1))
    run(hierarchy, executor, "ab")
    assert hierarchy.room.reclaim(4)
    assert found(hierarchy, executor, "ab") == (1, 0, {Miss.NO_HOST_ROOM: 1})


def test_a_page_in_flight_is_joined_and_not_loaded_twice() -> None:
    hierarchy, executor = make(Shape(device=8, host=16))
    run(hierarchy, executor, "ab")
    run(hierarchy, executor, "bbbbbbbb")
    keys = history("ab")
    first, second = hierarchy.admit(keys, 2, Asked()), hierarchy.admit(keys, 2, Asked())
    assert first and second and first.lease.slots == second.lease.slots
    assert hierarchy.pages.loaded == 0 and len(hierarchy.copies.operations) == 1


def test_retraction_and_resume_count_one_hit() -> None:
    hierarchy, executor = make(Shape(device=8, host=16))
    run(hierarchy, executor, "ab")
    keys = history("ab")
    admission = hierarchy.admit(keys, 2, Asked())
    assert admission
    hierarchy.release(admission.lease)
    again = hierarchy.admit(keys, 2, Asked(counted=admission.lease.counted))
    assert again
    page = hierarchy.tree.find(keys[1])
    assert page is not None and hierarchy.tree.columns.hits[page] == 2


def test_a_history_that_left_the_replica_comes_back_from_the_store() -> None:
    hierarchy, executor = make(Shape(device=4, host=8, backlog=8))
    run(hierarchy, executor, "abc")
    assert set(history("abc")) <= stored(executor)
    for symbols in ("bbca", "ccca", "ddda"):
        run(hierarchy, executor, symbols)
    keys = history("abc")
    assert hierarchy.tree.match(keys).held == 0
    prefetch = hierarchy.prefetches.start(0, Stretch(keys, 0, 3, b""), minimum=1)
    assert prefetch and hierarchy.prefetches.bringing(keys[2]) is prefetch
    settle(hierarchy, executor)
    assert prefetch.final and prefetch.landed == 3 and prefetch.complete
    assert found(hierarchy, executor, "abc") == (0, 3, {})


def test_the_deepest_queued_writes_go_first_when_the_queue_is_full() -> None:
    hierarchy, executor = make(Shape(device=8, host=8, backlog=2))
    keys = history("abcd")
    admission = hierarchy.admit(keys, 4, Asked())
    assert admission
    executor.device[Component.FULL].update(zip(admission.lease.slots, keys, strict=True))
    hierarchy.commit(admission.lease, keys)
    hierarchy.release(admission.lease)
    settle(hierarchy, executor)
    assert stored(executor) == set(history("ab"))
    assert hierarchy.writes.dropped == 2


def test_a_page_that_is_being_written_keeps_its_host_slot() -> None:
    hierarchy, executor = make(Shape(device=2, host=2, backlog=2))
    for symbols in ("ab", "ba"):
        keys = history(symbols)
        admission = hierarchy.admit(keys, 2, Asked())
        assert admission
        executor.device[Component.FULL].update(zip(admission.lease.slots, keys, strict=True))
        hierarchy.commit(admission.lease, keys)
        hierarchy.release(admission.lease)
        executor.agree(100)
        hierarchy.absorb()
        executor.execute()
    assert hierarchy.tree.match(history("ab")).held == 2 and hierarchy.writes.in_flight == 1
    for transfer in list(executor.transfers.values()):
        executor.transfer(transfer, fails=False)
        executor.transfer(transfer, fails=False)
    assert stored(executor) == set(history("ab"))


def test_pages_that_are_saved_from_the_tail_reach_the_store_once_those_before_them_do() -> None:
    hierarchy, executor = make(Shape(device=6, host=12, backlog=12, write="write_back"))
    run(hierarchy, executor, "abcd")
    hierarchy.run_ahead(4)
    settle(hierarchy, executor)
    assert stored(executor) == set(), "the tail is saved first, and waits for the pages before it"
    hierarchy.run_ahead(6)
    settle(hierarchy, executor)
    assert stored(executor) == set(history("abcd"))


def test_after_a_failed_write_the_pages_before_it_are_written_again() -> None:
    hierarchy, executor = make(Shape(device=8, host=12, backlog=12))
    run(hierarchy, executor, "ab")
    executor.store.clear()
    keys = history("abc")
    admission = hierarchy.admit(keys, 3, Asked())
    assert admission
    executor.device[Component.FULL][admission.lease.slots[2]] = keys[2]
    hierarchy.commit(admission.lease, keys[2:])
    hierarchy.release(admission.lease)
    while not executor.transfers:
        executor.agree(100)
        hierarchy.absorb()
    for transfer in executor.transfers.values():
        executor.transfer(transfer, fails=True)
    settle(hierarchy, executor)
    assert stored(executor) == set()
    run(hierarchy, executor, "abcd")
    assert stored(executor) == set(history("abcd"))
