from hypothesis import given
from hypothesis import strategies as st

from stratakv.storage.residence import Changes, ResidenceLog


def key(n):
    return bytes([n]) * 32


def test_nothing_noted_is_no_change():
    log = ResidenceLog()
    assert not log.drain() and log.drain() == Changes()


def test_both_sets_are_noted_apart_and_in_order():
    log = ResidenceLog()
    log.note_held(key(2), True)
    log.note_held(key(1), True)
    log.note_device(key(1), True)
    log.note_device(key(3), False)
    assert log.drain() == Changes(
        device_added=(key(1),), device_removed=(key(3),), held_added=(key(2), key(1)), held_removed=()
    )
    assert not log.drain()


def test_what_came_back_is_no_change():
    log = ResidenceLog()
    log.note_device(key(1), True)
    log.note_device(key(1), False)
    log.note_held(key(2), False)
    log.note_held(key(2), True)
    log.note_held(key(2), False)
    assert log.drain() == Changes(held_removed=(key(2),))


@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 5)))))
def test_a_copy_that_takes_every_change_stays_equal(rounds):
    log, device, held = ResidenceLog(), set(), set()
    device_copy, held_copy = set(), set()
    for flips in rounds:
        for on_device, number in flips:
            pages, note = (device, log.note_device) if on_device else (held, log.note_held)
            pages ^= {key(number)}
            note(key(number), key(number) in pages)
        changes = log.drain()
        # Net: what is added was not there, what is removed was.
        assert not device_copy & set(changes.device_added) and device_copy >= set(changes.device_removed)
        assert not held_copy & set(changes.held_added) and held_copy >= set(changes.held_removed)
        device_copy = device_copy - set(changes.device_removed) | set(changes.device_added)
        held_copy = held_copy - set(changes.held_removed) | set(changes.held_added)
        assert (device_copy, held_copy) == (device, held)
