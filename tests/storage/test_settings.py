import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stratakv.storage.policies.eviction import EVICTION_POLICIES
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.settings import CacheSettings, exact_size, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 * 2**20),
        ("2GiB", 2 * 2**30),
        ("1.5GB", 1_500_000_000),
        (" 64 KiB ", 65536),
        ("7B", 7),
        ("0", 0),
        (4096, 4096),
    ],
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("bad", ["", "MiB", "1 mib", "1,5GB", "-1", "1GiB2", True, None, "1e9", "0x10"])
def test_what_is_no_size_is_told_how_to_write_one(bad):
    with pytest.raises(ValueError, match="is not a size; write it as 512MiB"):
        parse_size(bad)


def test_a_negative_number_is_no_size():
    with pytest.raises(ValueError, match="0 or more"):
        parse_size(-1)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 999), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_whole_sizes_are_written_as_they_are_read(number, unit):
    assert format_size(parse_size(f"{number}{unit}")) == f"{number}{unit}"


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 50))
def test_settings_files_lose_no_byte(size):
    assert parse_size(exact_size(size)) == size


def test_cache_settings_survive_a_settings_file():
    cache = CacheSettings(page_size=16, device_memory="64MiB", host_memory="1.5GiB")
    dumped = cache.model_dump(mode="json")
    assert (dumped["device_memory"], dumped["host_memory"]) == ("64MiB", "1536MiB")
    assert CacheSettings.model_validate(dumped) == cache


def test_cache_defaults():
    cache = CacheSettings()
    assert (cache.page_size, cache.device_memory, cache.host_memory) == (64, 512 * 2**20, 2**30)
    assert cache.write_policy in WRITE_POLICIES.names()
    assert cache.eviction_policy in EVICTION_POLICIES.names()


def test_settings_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        CacheSettings().page_size = 16


@pytest.mark.parametrize(
    "wrong",
    [{"pagesize": 16}, {"page_size": 0}, {"page_size": 8192}, {"device_memory": "much"}, {"host_memory": -1}],
)
def test_a_wrong_setting_is_named(wrong):
    (name,) = wrong
    with pytest.raises(ValidationError, match=name):
        CacheSettings(**wrong)


def test_a_checkpoint_interval_that_is_no_multiple_of_the_page_names_both_settings():
    with pytest.raises(
        ValueError, match=r"checkpoint_interval is 100 and cache.page_size is 64.* such as 64"
    ):
        CacheSettings(page_size=64, checkpoint_interval=100)
    assert CacheSettings(page_size=48).checkpoint_pages == 42
    assert CacheSettings(page_size=64, checkpoint_interval=0).checkpoint_pages == 0


def test_write_back_without_a_host_tier_names_both_settings():
    with pytest.raises(ValueError, match=r"write_policy is write_back and cache.host_memory is 0"):
        CacheSettings(write_policy="write_back", host_memory=0)
