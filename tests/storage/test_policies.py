"""Each policy by itself, and what all of one kind promise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratakv.storage.policies.eviction import EVICTION_POLICIES, PageUse
from stratakv.storage.policies.prefetch import PREFETCH_POLICIES, PrefetchState, Verdict
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.registry import Registry, UnknownName
from stratakv.storage.stores.settings import StoreSettings

uses = st.builds(
    PageUse,
    last_use=st.integers(1, 10**9),
    hits=st.integers(1, 10**6),
    depth=st.integers(1, 10**6),
    priority=st.integers(-8, 8),
)
evictions = st.sampled_from(EVICTION_POLICIES.names())


def evict(name, **kwargs):
    return EVICTION_POLICIES.get(name)(**kwargs)


def order(name, *pages):
    """`pages` in the order in which they leave."""
    return sorted(pages, key=evict(name).rank)


# -- eviction


@given(evictions, uses, st.integers(1, 10**6), st.integers(0, 3), st.integers(0, 4))
def test_no_rank_falls_when_a_page_is_used_again(name, use, later, hits, priority):
    again = use._replace(
        last_use=use.last_use + later, hits=use.hits + hits, priority=use.priority + priority
    )
    rank = evict(name).rank
    assert rank(again) >= rank(use) == rank(use)


@given(evictions, uses, st.integers(1, 10**6))
def test_of_pages_alike_the_longest_unused_leaves_first(name, use, later):
    rank = evict(name).rank
    assert rank(use._replace(last_use=use.last_use + later)) > rank(use)


@given(st.lists(uses, min_size=2, max_size=20))
def test_lru_knows_recency_alone(pages):
    assert order("lru", *pages) == sorted(pages, key=lambda use: use.last_use)


@given(st.lists(uses, min_size=2, max_size=20))
def test_lfu_counts_hits_and_then_recency(pages):
    assert order("lfu", *pages) == sorted(pages, key=lambda use: (min(use.hits, 8191), use.last_use))


@given(st.lists(uses, min_size=2, max_size=20))
def test_slru_protects_from_the_second_hit_on(pages):
    assert order("slru", *pages) == sorted(pages, key=lambda use: (use.hits > 1, use.last_use))


@given(st.lists(uses, min_size=2, max_size=20))
def test_priority_comes_before_recency(pages):
    assert order("priority", *pages) == sorted(pages, key=lambda use: (use.priority, use.last_use))


def test_cost_lets_pages_go_that_were_used_once_although_they_are_new():
    popular = PageUse(last_use=100, hits=3, depth=4)
    scanned = [PageUse(last_use=tick, hits=1, depth=4) for tick in range(101, 5000)]
    assert order("cost", popular, *scanned)[-1] == popular


def test_cost_keeps_deep_pages_longer_than_shallow_ones():
    deep, shallow = PageUse(50, 2, depth=2048), PageUse(60, 2, depth=8)
    assert order("cost", deep, shallow) == [shallow, deep]
    assert order("lru", deep, shallow) == [deep, shallow]


def test_cost_forgets_what_was_popular_once():
    capacity = 100
    rank = evict("cost", capacity=capacity).rank
    popular = rank(PageUse(last_use=1, hits=1000, depth=1))
    assert popular > rank(PageUse(last_use=10 * capacity, hits=1, depth=1))
    assert popular < rank(PageUse(last_use=20 * capacity, hits=1, depth=1))


@given(uses, uses, st.integers(1, 10**9))
def test_cost_orders_two_pages_the_same_at_any_time(one, other, shift):
    """It is a logarithm of a product that decays: `now` drops out of every comparison."""
    rank = evict("cost").rank
    now = max(one.last_use, other.last_use)
    later = [use._replace(last_use=use.last_use + shift) for use in (one, other)]
    before, after = rank(one) - rank(other), rank(later[0]) - rank(later[1])
    assert before == pytest.approx(after, abs=1e-6 * (1 + now + shift) / 8192)


# -- write


@pytest.mark.parametrize(
    ("name", "wants"),
    [
        ("write_through", [False, True, True, True]),
        ("write_through_selective", [False, False, True, True]),
        ("write_back", [False, False, False, False]),
    ],
)
def test_when_a_page_is_copied_to_host(name, wants):
    policy = WRITE_POLICIES.get(name)()
    assert [policy.wants_backup(hits) for hits in range(4)] == wants


@given(st.sampled_from(WRITE_POLICIES.names()), st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_hits_never_speak_against_a_copy(name, hits, more):
    policy = WRITE_POLICIES.get(name)()
    assert policy.wants_backup(hits) <= policy.wants_backup(hits + more)


# -- prefetch

seconds = st.floats(0, 1000)
states = st.builds(
    PrefetchState,
    pages=st.integers(1, 1000),
    landed=st.integers(0, 999),
    waited=seconds,
    tokens=st.integers(0, 10**6),
    to_land=st.none() | seconds,
    to_compute=st.none() | seconds,
)


def prefetch(name, **settings):
    return PREFETCH_POLICIES.get(name)(StoreSettings(**settings))


@given(states)
def test_best_effort_cuts_at_the_first_look_and_wait_complete_never(state):
    assert prefetch("best_effort").verdict(state) is Verdict.CUT
    assert prefetch("wait_complete").verdict(state) is Verdict.WAIT


@given(states, st.floats(0.01, 10), st.floats(0, 10))
def test_timeout_counts_from_the_first_blocked_look(state, base, per_1024):
    policy = prefetch("timeout", prefetch_timeout_base=base, prefetch_timeout_per_1024=per_1024)
    limit = base + per_1024 * state.tokens / 1024
    for waited, verdict in ((0.999 * limit, Verdict.WAIT), (1.001 * limit + 0.001, Verdict.CUT)):
        assert policy.verdict(state._replace(waited=waited)) is verdict


def test_timeout_by_default():
    state = PrefetchState(pages=64, landed=0, waited=1.99, tokens=4096)
    assert prefetch("timeout").verdict(state) is Verdict.WAIT
    assert prefetch("timeout").verdict(state._replace(waited=2.01)) is Verdict.CUT


@given(states)
def test_break_even_cuts_what_takes_a_tenth_longer_to_land(state):
    known = state.to_land is not None and state.to_compute is not None
    dearer = known and state.to_land > 1.1 * state.to_compute
    assert (prefetch("break_even").verdict(state) is Verdict.CUT) == dearer


def test_break_even_is_what_nobody_asked_for():
    assert StoreSettings().prefetch_policy == "break_even"


# -- the registries


@pytest.mark.parametrize(
    ("registry", "setting", "known"),
    [
        (EVICTION_POLICIES, "cache.eviction_policy", "cost, lfu, lru, priority, slru"),
        (
            WRITE_POLICIES,
            "cache.write_policy",
            "write_back, write_through, write_through_selective",
        ),
        (PREFETCH_POLICIES, "store.prefetch_policy", "best_effort, break_even, timeout, wait_complete"),
    ],
)
def test_an_unknown_policy_names_setting_and_known_names(registry, setting, known):
    with pytest.raises(UnknownName) as error:
        registry.get("belady")
    assert all(word in str(error.value) for word in (setting, "'belady'", known))
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("registry", [EVICTION_POLICIES, WRITE_POLICIES, PREFETCH_POLICIES])
def test_every_policy_says_when_to_use_it(registry):
    assert registry.names()
    for name in registry.names():
        assert "Use it" in registry.get(name).__doc__


def test_a_registry_keeps_names_apart():
    registry = Registry("thing", "some.setting")
    registry.register("b")(2)
    assert registry.register("a")(1) == 1
    assert registry.names() == ["a", "b"]
    assert registry.get("b") == 2
    with pytest.raises(ValueError, match="thing 'a' is already registered"):
        registry.register("a")(3)
    assert registry.get("a") == 1


def test_an_empty_registry():
    with pytest.raises(UnknownName, match="known are: none"):
        Registry("thing", "some.setting").get("a")
