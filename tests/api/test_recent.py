"""The latest histories: what is found, what is forgotten, and that nobody sees what another has said."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from stratakv.api.prompts import Tenant
from stratakv.api.recent import RecentPrompts

A, B = Tenant(cache_salt="a"), Tenant(cache_salt="b")
PLAIN = Tenant()

ids = st.lists(st.integers(0, 2), max_size=8)
tenants = st.sampled_from([A, B, PLAIN, Tenant(extra_key="x"), Tenant(api_key="k")])


def tokens(*values):
    return array("I", values)


def common(one, other):
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@given(st.lists(st.tuples(tenants, ids, ids), max_size=12), tenants, ids)
def test_the_nearest_is_the_tenants_own_and_shares_the_most(said, tenant, asked):
    recent = RecentPrompts(100, 2**20)
    for who, prompt, output in said:
        recent.remember(who, array("I", prompt), output)
    own = [prompt + output for who, prompt, output in said if who == tenant]
    nearest = recent.nearest(tenant, array("I", asked))
    if not own:
        assert nearest is None
        return
    assert list(nearest.ids) in own
    assert nearest.common == common(nearest.ids, asked) == max(common(each, asked) for each in own)


@given(st.lists(st.tuples(tenants, ids), max_size=12), tenants, ids)
def test_of_others_only_a_number_is_told_and_never_of_a_foreign_salt(said, tenant, asked):
    recent = RecentPrompts(100, 2**20)
    for who, prompt in said:
        recent.remember(who, array("I", prompt), [])
    open_to = [
        prompt
        for who, prompt in said
        if who != tenant and who.api_key == tenant.api_key and who.cache_salt in (None, tenant.cache_salt)
    ]
    assert recent.elsewhere(tenant, array("I", asked)) == max(
        (common(prompt, asked) for prompt in open_to), default=0
    )


def test_without_a_salt_nothing_is_learned_of_those_who_have_one():
    recent = RecentPrompts(10, 2**20)
    recent.remember(A, tokens(1, 2, 3), [])
    for stranger in (PLAIN, B, Tenant(extra_key="x"), Tenant("a", api_key="k")):
        assert recent.nearest(stranger, tokens(1, 2, 3)) is None
        assert recent.elsewhere(stranger, tokens(1, 2, 3)) == 0


def test_a_conversation_takes_one_place():
    recent = RecentPrompts(10, 2**20)
    recent.remember(A, tokens(1), [2])
    recent.remember(A, tokens(1, 2, 3), [4])
    recent.remember(A, tokens(1, 2), [])
    recent.remember(B, tokens(1), [2])
    assert len(recent) == 2
    assert list(recent.nearest(A, tokens(1, 2, 9)).ids) == [1, 2, 3, 4]


@given(st.integers(0, 5), st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30), max_size=20))
def test_number_and_memory_are_bounded_and_the_latest_stay(most, said):
    recent = RecentPrompts(most, 1000)
    for prompt in said:
        recent.remember(PLAIN, array("I", prompt), [])
        assert len(recent) <= most and recent.bytes <= 1000
        assert (len(recent) > 0) == (most > 0)
        if most:
            assert recent.nearest(PLAIN, array("I", prompt)).common == len(prompt)


def test_no_memory_remembers_nothing():
    recent = RecentPrompts(10, 0)
    recent.remember(PLAIN, tokens(1, 2), [])
    assert len(recent) == recent.bytes == 0
