"""Where settings come from, which source wins, and what a wrong one is told."""

from pathlib import Path

import pytest

from stratakv.deploy.sources import SettingsError, load

PAGE_SIZE = ("cache", "page_size")


def flags(**given: object):
    paths = {
        "page_size": PAGE_SIZE,
        "replicas": ("replicas",),
        "port": ("api", "port"),
    }
    return {f"--{name.replace('_', '-')}": (paths[name], value) for name, value in given.items()}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text("cache: {page_size: 16, host_memory: 2GiB}\nmodel: {threads: 2}\n")
    return path


def test_later_sources_win_and_each_value_knows_its_own(config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STRATAKV_CACHE__HOST_MEMORY", "512MiB")
    monkeypatch.setenv("STRATAKV_CACHE__PAGE_SIZE", "32")
    loaded = load(config, flags(page_size=128))
    assert loaded.settings.cache.page_size == 128
    assert loaded.settings.cache.host_memory == 512 * 2**20
    assert loaded.settings.model.threads == 2
    assert loaded.place(PAGE_SIZE) == "flag --page-size"
    assert loaded.place(("cache", "host_memory")) == "env STRATAKV_CACHE__HOST_MEMORY"
    assert loaded.place(("model", "threads")) == f"file {config}"
    assert loaded.place(("api", "port")) == "default"


def test_a_flag_that_is_not_given_changes_nothing(config: Path):
    assert load(config, flags(page_size=None)).settings.cache.page_size == 16


def test_top_level_settings_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STRATAKV_REPLICAS", "1")
    assert load(None, {}).place(("replicas",)) == "env STRATAKV_REPLICAS"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"page_size": 0},
            ["cache.page_size (from flag --page-size)", "greater than or equal to 1", "not 0"],
        ),
        ({"replicas": 0}, ["replicas (from flag --replicas)", "greater than or equal to 1", "not 0"]),
        ({"port": 70000}, ["api.port (from flag --port)", "65535"]),
    ],
)
def test_a_wrong_flag_is_named_with_the_remedy(given: dict[str, object], words: list[str]):
    with pytest.raises(SettingsError) as raised:
        load(None, flags(**given))
    message = str(raised.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cache: {page_sise: 64}", ["cache.page_sise (from file", "there is no such setting"]),
        ("cahce: {page_size: 64}", ["cahce", "there is no such setting"]),
        ("cache: {host_memory: lots}", ["cache.host_memory", "'lots' is not a size", "512MiB"]),
        ("tensor_parallel: 0", ["tensor_parallel", "greater than or equal to 1"]),
        (
            "{tensor_parallel: 4, store: {head_groups: 6}}",
            ["store.head_groups is 6 and tensor_parallel is 4", "a multiple of 4"],
        ),
        ("- a list", ["must hold sections"]),
        ("cache: [", ["is not YAML"]),
        ("cache: {page_size: 16, page_size: 32}", ["page_size is given more than once"]),
        ("cache: {host_memory: 0}", ["store.url is set and cache.host_memory is 0"]),
        ("router: {policy: best}", ["router.policy (from file", "no routing policy 'best'", "least_loaded"]),
    ],
)
def test_a_wrong_file_is_named_with_the_remedy(tmp_path: Path, text: str, words: list[str]):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load(path, {})
    for word in words:
        assert word in str(raised.value)


def test_every_wrong_setting_gets_its_own_line(tmp_path: Path):
    path = tmp_path / "settings.yaml"
    path.write_text("cache: {page_size: 0}\nmodel: {threads: 0}\n")
    with pytest.raises(SettingsError) as raised:
        load(path, {})
    assert len(str(raised.value).splitlines()) == 2


def test_a_missing_file_is_an_error(tmp_path: Path):
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path / "none.yaml", {})


def test_an_unknown_section_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STRATAKV_CAHCE__PAGE_SIZE", "64")
    with pytest.raises(SettingsError, match="STRATAKV_CAHCE__PAGE_SIZE"):
        load(None, {})
