import pytest

from stratakv.storage.policies.eviction import EVICTION_POLICIES, PageUse
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.registry import Registry, UnknownName


def test_lru_lets_the_longest_unused_page_leave_first():
    lru = EVICTION_POLICIES.get("lru")()
    uses = [PageUse(last_use=tick, hits=9 - tick, depth=tick) for tick in (3, 1, 2)]
    assert [use.last_use for use in sorted(uses, key=lru.rank)] == [1, 2, 3]


def test_lru_ranks_by_nothing_else():
    lru = EVICTION_POLICIES.get("lru")()
    assert lru.rank(PageUse(5, 1, 1)) == lru.rank(PageUse(5, 100, 100))


def test_write_through_copies_at_the_first_hit():
    policy = WRITE_POLICIES.get("write_through")()
    assert [policy.wants_backup(hits) for hits in (0, 1, 2)] == [False, True, True]


@pytest.mark.parametrize(
    ("registry", "setting", "known"),
    [
        (EVICTION_POLICIES, "cache.eviction_policy", "lru"),
        (WRITE_POLICIES, "cache.write_policy", "write_through"),
    ],
)
def test_an_unknown_policy_names_setting_and_known_names(registry, setting, known):
    with pytest.raises(UnknownName) as error:
        registry.get("belady")
    assert all(word in str(error.value) for word in (setting, "'belady'", known))
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("registry", [EVICTION_POLICIES, WRITE_POLICIES])
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
