import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratakv.storage.restore import (
    ALL_PAGES,
    EXACT,
    HitPolicy,
    Presence,
    Rule,
    in_every,
    restorable,
    trailing,
)

policies = st.one_of(
    st.just(ALL_PAGES), st.just(EXACT), st.integers(1, 6).map(lambda n: HitPolicy(Rule.TRAILING, n))
)
presences = st.builds(Presence, policies, st.lists(st.booleans(), max_size=14))


def usable(presence, length):
    bits = [index < len(presence.bitmap) and presence.bitmap[index] for index in range(length)]
    if not length:
        return True
    if presence.policy == ALL_PAGES:
        return all(bits)
    if presence.policy == EXACT:
        return bits[-1]
    return all(bits[-presence.policy.pages :])


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 14), st.lists(presences, max_size=3))
def test_against_the_definition(pages, components):
    wanted = [all(usable(each, length) for each in components) for length in range(pages + 1)]
    found = restorable(pages, components)
    assert list(found.lengths) == wanted
    assert found.longest == max(length for length in range(pages + 1) if wanted[length])
    for bound in range(-1, pages + 3):
        possible = [length for length in range(pages + 1) if wanted[length] and length <= max(bound, 0)]
        assert found.longest_upto(bound) == max(possible)


def test_a_minimum_of_lengths_is_not_enough():
    attention = Presence(ALL_PAGES, [True] * 16)
    state = Presence(EXACT, [n in (8, 16) for n in range(1, 17)])
    found = restorable(16, [attention, state])
    assert [n for n, here in enumerate(found.lengths) if here] == [0, 8, 16]
    assert (found.longest, found.longest_upto(15), found.longest_upto(7)) == (16, 8, 0)


def test_a_window_needs_the_pages_it_reads():
    assert trailing(window=129, page_size=64) == HitPolicy(Rule.TRAILING, 2)
    assert trailing(window=130, page_size=64) == HitPolicy(Rule.TRAILING, 3)
    assert trailing(window=1, page_size=64) == HitPolicy(Rule.TRAILING, 1)
    found = restorable(4, [Presence(trailing(129, 64), [False, True, True, False])])
    assert found.lengths == (True, False, False, True, False)


def test_a_page_is_there_when_all_groups_have_it():
    assert in_every([[True, True, False], [True, False, True]]) == [True, False, False]
    assert in_every([[True, True], [True]]) == [True]


def test_rules_that_contradict_themselves():
    with pytest.raises(ValueError, match="TRAILING alone needs 1 or more"):
        HitPolicy(Rule.TRAILING)
    with pytest.raises(ValueError, match="TRAILING alone"):
        HitPolicy(Rule.EXACT, 2)
