"""The parts of the demo that need no cluster: sizes, texts, accounts, and what it refuses to pass over."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from stratakv.deploy import demo_settings
from stratakv.deploy.demo_client import Account, Answer, ClientError, account_of
from stratakv.deploy.demo_play import DemoError, Outcome, check_equal, check_hit
from stratakv.deploy.demo_text import QUESTIONS, SHIP, continued, opening, other_ship
from stratakv.deploy.demo_view import Row, table
from stratakv.deploy.sources import load

CONFIG = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def answer(
    text: str = "salt", *, device: int = 0, host: int = 0, store: int = 0, computed: int = 0
) -> Answer:
    return Answer(text, 0.5, Account(device + host + store + computed, device, host, store, computed))


def test_the_settings_are_valid_and_hold_the_pages_they_promise(model: Path, tmp_path: Path):
    settings = load(None, demo_settings.demo_settings(model, tmp_path / "store")).settings
    page = 30 * 2 * 3 * 64 * 4 * demo_settings.PAGE_SIZE
    assert settings.cache.device_memory == demo_settings.DEVICE_PAGES * page
    assert settings.cache.host_memory >= demo_settings.HOST_PAGES * page
    assert settings.replicas == 2
    assert settings.store.url == (tmp_path / "store").as_uri()


def test_the_environment_does_not_change_what_the_demo_needs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STRATAKV_REPLICAS", "1")
    monkeypatch.setenv("STRATAKV_STORE__URL", "none")
    settings = load(None, demo_settings.demo_settings(model, tmp_path)).settings
    assert settings.replicas == 2
    assert settings.store.url


@pytest.mark.parametrize(
    "config", ["{}", "[]", "no json", json.dumps(CONFIG | {"num_attention_heads": None})]
)
def test_a_model_of_unknown_size_is_refused_by_name(tmp_path: Path, config: str):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(demo_settings.UnknownShape, match=r"--model: .*config\.json.*smollm2"):
        demo_settings.demo_settings(tmp_path, tmp_path)


def test_a_missing_config_is_refused_by_name(tmp_path: Path):
    with pytest.raises(demo_settings.UnknownShape, match="FileNotFoundError"):
        demo_settings.demo_settings(tmp_path, tmp_path)


def test_conversations_are_the_same_in_every_run_and_differ_from_their_first_words():
    ships = [SHIP, *(other_ship(number) for number in range(40))]
    texts = [json.dumps(opening(ship, 30, QUESTIONS[0])) for ship in ships]
    assert texts[0] == json.dumps(opening(SHIP, 30, QUESTIONS[0]))
    assert len({text[:60] for text in texts}) == len(ships)


def test_a_turn_later_a_conversation_starts_as_before():
    first = opening(SHIP, 3, QUESTIONS[0])
    second = continued(first, "salt", QUESTIONS[1])
    assert second[: len(first)] == first
    assert [message["content"] for message in second[len(first) :]] == ["salt", QUESTIONS[1]]


def usage(prompt: int, device: int, host: int, store: int, computed: int) -> SimpleNamespace:
    details = {
        "cached_tokens_by_tier": {"device": device, "host": host, "store": store},
        "computed_tokens": computed,
    }
    return SimpleNamespace(prompt_tokens=prompt, prompt_tokens_details=SimpleNamespace(model_extra=details))


def test_an_account_is_read_from_what_the_sdk_gives():
    assert account_of(usage(10, 1, 2, 3, 4)) == Account(10, 1, 2, 3, 4)


def test_an_account_that_does_not_add_up_is_an_error():
    with pytest.raises(ClientError, match="does not add up"):
        account_of(usage(11, 1, 2, 3, 4))


@pytest.mark.parametrize("nothing", [None, SimpleNamespace(prompt_tokens=1, prompt_tokens_details=None)])
def test_a_missing_account_is_an_error(nothing: object):
    with pytest.raises(ClientError, match="without the account"):
        account_of(nothing)


@pytest.mark.parametrize("tier", ["device", "host", "store"])
def test_a_hit_must_be_in_the_tier_that_was_claimed(tier: str):
    check_hit(2, answer(**{tier: 50}, computed=50), tier)
    with pytest.raises(DemoError, match=f"turn 2 should have come from the {tier}: of its 100 prompt tokens"):
        check_hit(2, answer(**{tier: 49}, computed=51), tier)


def test_the_first_turn_need_not_hit():
    check_hit(1, answer(computed=100), None)


def test_a_different_answer_is_an_error():
    check_equal(3, answer("salt", device=90, computed=10), answer("salt", computed=100))
    with pytest.raises(DemoError, match="turn 3 was answered 'salt', and without cache 'tea'"):
        check_equal(3, answer("salt", device=90, computed=10), answer("tea", computed=100))


def test_an_answer_that_should_be_without_cache_must_be():
    with pytest.raises(DemoError, match="fresh cache_salt had 5 tokens from a cache"):
        check_equal(3, answer(computed=100), answer(host=5, computed=95))


def test_the_table_fits_a_small_terminal():
    console = Console(width=80, record=True)
    rows = [
        Row(4, SHIP, 1, answer(host=896, computed=50), answer(computed=946)),
        Row(1, "Shearwater 2", 0, answer()),
    ]
    console.print(table(rows))
    shown = console.export_text()
    assert "…" not in shown
    assert shown.splitlines()[4].split() == ["4", "Petrel", "1", "946", "·", "896", "·", "50", "0.50", "0.50"]


def test_the_outcome_is_one_line():
    assert Outcome(1696, 896, 960).sentence() == (
        "every answer equal to the one without cache; 1,696 tokens from device, 896 from host, 960 from store"
    )
