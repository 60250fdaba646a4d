"""What the hierarchy does with windows and checkpoints, case by case."""

import pytest
from hierarchy_fakes import REACH, Request, Shape, history, make, run, settle

from stratakv.storage.hierarchy import Asked
from stratakv.storage.prefetch import Stretch
from stratakv.storage.tiers import Component, Miss

HYBRID = Shape(device=24, host=64, backlog=64, recurrent=(8, 32))
WINDOWED = Shape(device=24, host=64, backlog=64, sliding=(16, 32))


def stored(executor, component: Component) -> set[bytes]:
    return {key for kind, key in executor.store if kind is component}


def flood(hierarchy, executor) -> None:
    """Other histories push everything off the device."""
    for symbol in "xy":
        run(hierarchy, executor, symbol * 22)


def test_a_hybrid_history_comes_back_from_the_device_at_its_checkpoint() -> None:
    hierarchy, executor = make(HYBRID)
    run(hierarchy, executor, "abcdef")
    assert run(hierarchy, executor, "abcdefgh")[:2] == (6, 0)


@pytest.mark.parametrize("shape", [HYBRID, WINDOWED], ids=["hybrid", "windowed"])
def test_a_history_that_left_the_device_comes_back_from_host_with_its_side(shape: Shape) -> None:
    hierarchy, executor = make(shape)
    run(hierarchy, executor, "abcdef")
    flood(hierarchy, executor)
    assert run(hierarchy, executor, "abcdefgh")[:2] == (0, 6)
    assert hierarchy.sides.moves[0].loaded == (1 if shape is HYBRID else REACH)


def test_a_prefix_without_a_checkpoint_is_computed_again_and_the_reason_is_named() -> None:
    hierarchy, executor = make(HYBRID)
    run(hierarchy, executor, "abcdef")
    assert run(hierarchy, executor, "abcx") == (0, 0, (*[Miss.CHECKPOINT_MISSING] * 3, Miss.NEVER_SEEN))


def test_a_prefix_without_its_window_is_computed_again_and_the_reason_is_named() -> None:
    hierarchy, executor = make(WINDOWED)
    run(hierarchy, executor, "abcdef")
    assert run(hierarchy, executor, "abcx") == (0, 0, (*[Miss.WINDOW_MISSING] * 3, Miss.NEVER_SEEN))


@pytest.mark.parametrize("shape", [HYBRID, WINDOWED], ids=["hybrid", "windowed"])
def test_the_point_where_a_prompt_branched_off_once_serves_all_later_ones(shape: Shape) -> None:
    """The branch case: a shared prefix of 64 % of each prompt, ten prompts, then the same again from lower tiers."""
    hierarchy, executor = make(Shape(**{**vars(shape), "device": 32, "host": 400, "backlog": 400}))
    shared = "s" * 9 + "t" * 7
    asked = [shared + letter * 9 for letter in "abcdefghij"]
    for index, symbols in enumerate(asked):
        hits = run(hierarchy, executor, symbols)[:2]
        assert sum(hits) == (16 if index >= 2 else 0)
    flood(hierarchy, executor)
    again = [run(hierarchy, executor, symbols[:16] + symbols[-1].upper() * 9) for symbols in asked]
    assert [sum(hits[:2]) for hits in again] == [16] * 10
    assert sum(sum(hits[:2]) for hits in again) / (25 * 10) == 0.64


def test_a_new_checkpoint_on_an_old_page_reaches_host_and_store() -> None:
    hierarchy, executor = make(HYBRID)
    run(hierarchy, executor, "abcdef")
    page = hierarchy.tree.find(history("abc")[-1])
    side = hierarchy.sides.all[0]
    assert page not in side.host.slots and history("abc")[-1] not in stored(executor, Component.RECURRENT)
    run(hierarchy, executor, "abcx")
    assert page in side.host.slots and history("abc")[-1] in stored(executor, Component.RECURRENT)


def test_only_windows_before_marks_are_kept() -> None:
    hierarchy, executor = make(WINDOWED)
    run(hierarchy, executor, "abcdefgh")
    assert stored(executor, Component.SLIDING) == set(history("abcdefgh")[-REACH:])
    assert stored(executor, Component.FULL) == set(history("abcdefgh"))
    side = hierarchy.sides.all[0]
    assert len(side.device.slots) == REACH, "what the window passed is free again"


def test_checkpoints_within_a_long_prompt() -> None:
    hierarchy, executor = make(Shape(**{**vars(HYBRID), "interval": 3}))
    run(hierarchy, executor, "abcdefgh")
    marked = {key for count, key in enumerate(history("abcdefgh"), 1) if count in (3, 6, 8)}
    assert stored(executor, Component.RECURRENT) == marked
    assert run(hierarchy, executor, "abcdxxxx")[:2] == (3, 0)


def test_of_the_checkpoints_that_decoding_takes_the_last_is_kept() -> None:
    hierarchy, executor = make(HYBRID)
    keys = history("abcdefg")
    admission = hierarchy.admit(keys[:2], 8, Asked())
    assert admission
    request = Request(keys, admission.lease)
    assert request.forward(hierarchy, executor, 2)
    for _ in range(4):
        assert request.forward(hierarchy, executor, 1)
    assert request.forward(hierarchy, executor, 0, beyond=1)
    hierarchy.release(request.lease)
    settle(hierarchy, executor)
    assert stored(executor, Component.RECURRENT) == {keys[1], keys[5]}
    assert len(hierarchy.find(keys).path) == 6


@pytest.mark.parametrize("shape", [HYBRID, WINDOWED], ids=["hybrid", "windowed"])
def test_a_history_comes_back_from_the_store_with_its_side(shape: Shape) -> None:
    first, executor = make(shape)
    run(first, executor, "abcdef")
    other, late = make(shape)
    late.store = executor.store
    keys = history("abcdef")
    side = other.sides.all[0]
    needed = range(6 - (1 if shape is HYBRID else REACH), 6)
    prefetch = other.prefetches.start(0, Stretch(keys, 0, 6, b"", {side.component: needed}), minimum=1)
    assert prefetch is not None
    settle(other, late)
    assert prefetch.complete
    assert run(other, late, "abcdefgh")[:2] == (0, 6)


def test_a_page_takes_its_side_with_it() -> None:
    hierarchy, executor = make(Shape(device=8, host=0, recurrent=(4, 0)))
    run(hierarchy, executor, "abcd")
    assert len(hierarchy.sides.all[0].device.slots) == 1
    run(hierarchy, executor, "bbbbbbbb")
    page = hierarchy.tree.find(history("abcd")[-1])
    assert page is None and len(hierarchy.sides.all[0].device.slots) == 1


def test_more_requests_than_windows_wait_for_their_turn() -> None:
    hierarchy, _ = make(WINDOWED)
    assert hierarchy.sides.windows is not None
    fit = 16 // hierarchy.sides.windows.quota
    leases = [hierarchy.admit(history(letter), 2, Asked()) for letter in "abcdef"]
    assert [lease is not None for lease in leases] == [index < fit for index in range(6)]


def test_one_buffer_keeps_more_than_two_of_the_same_total() -> None:
    """Many short histories need checkpoints, a few long ones pages; fixed shares suit one of them at most."""
    kept = {}
    for each, device, places in ((0, 36, 6), (2, 48, 0)):
        hierarchy, executor = make(Shape(device=device, host=0, recurrent=(places, 0), each=each))
        asked = [f"{letter}{letter}" for letter in "abcdefghijkl"]
        for symbols in asked:
            run(hierarchy, executor, symbols)
        kept[each] = sum(bool(hierarchy.find(history(symbols)).path) for symbols in asked)
    assert (kept[0], kept[2]) == (6, 12)
