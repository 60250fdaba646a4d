"""The model layer: greedy tokens are those of transformers; what is wrong with a model or its files is refused.

Families are compared step by step in test_families.py, and those that are refused are in test_refused_families.py.
"""

import json
import shutil
from pathlib import Path

import pytest
import tiny_models
import torch
from model_session import PAGE, Session, plain_model, prompt
from transformers import BertConfig, BertModel

from stratakv.actors.settings import ModelSettings
from stratakv.actors.worker.model import Model, ModelError
from stratakv.kernels.shapes import LayerShape, ModelShapes

FAMILIES = ("llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3", "falcon_h1", "qwen3_next")
"""One of each kind of state."""


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: tiny_models.write_model(root / family, family) for family in FAMILIES}


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, directories):
    """A model of each family, and the same one as transformers runs it."""
    path = directories[request.param]
    return Model.load(settings(path)), plain_model(path)


def settings(path: Path, **more: object) -> ModelSettings:
    return ModelSettings(path=str(path), device="cpu", **more)


def plain_greedy(plain, tokens: list[int], count: int) -> list[int]:
    ids = torch.tensor([tokens])
    out = plain.generate(
        ids, max_new_tokens=count, do_sample=False, eos_token_id=None, attention_mask=ids >= 0
    )
    return out[0, len(tokens) :].tolist()


def test_greedy_equals_transformers(pair):
    model, plain = pair
    tokens = prompt(45)
    assert Session(model).greedy("a", tokens, 20) == plain_greedy(plain, tokens, 20)


def test_the_tiny_models_do_not_just_repeat_themselves(pair):
    """Else equal tokens would prove nothing."""
    assert len(set(plain_greedy(pair[1], prompt(45), 20))) > 5


@pytest.mark.parametrize("cuts", [(8, 16, 40), (7,), (1, 2, 3), (44,)])
def test_chunked_prefill_equals_whole(pair, cuts):
    model, plain = pair
    tokens = prompt(45, seed=2)
    assert Session(model).greedy("a", tokens, 8, cuts) == plain_greedy(plain, tokens, 8)


@pytest.mark.parametrize("cached", [8, 32, 40])
def test_a_cached_prefix_equals_computing_it(directories, cached):
    path = directories["mistral"]
    model, plain = Model.load(settings(path)), plain_model(path)
    session = Session(model)
    first = prompt(48, seed=3)
    session.greedy("first", first, 1)
    second = first[:cached] + prompt(9, seed=4)
    session.pages["second"] = session.pages["first"][: cached // PAGE]
    assert session.greedy("second", second, 8, start=cached) == plain_greedy(plain, second, 8)


def test_mixed_batches_equal_transformers(pair):
    """A long prompt in chunks, a request that joins late, and decodes, all in the same steps."""
    model, plain = pair
    session = Session(model)
    texts = {"a": prompt(30, 5), "b": prompt(5, 6), "c": prompt(61, 7)}
    expected = {name: plain_greedy(plain, tokens, 8) for name, tokens in texts.items()}
    chunk = {"a": 30, "b": 5, "c": 16}
    joins = {"a": 0, "b": 2, "c": 1}
    histories = {name: list(tokens) for name, tokens in texts.items()}
    done = dict.fromkeys(texts, 0)
    for step in range(20):
        rows, names = [], []
        for name in ("c", "a", "b"):
            if step < joins[name] or len(histories[name]) == len(texts[name]) + 8:
                continue
            end = min(done[name] + chunk[name], len(histories[name]))
            sampled = end == len(histories[name])
            rows.append(session.row(name, histories[name], done[name], end, sampled))
            done[name] = end
            names += [name] if sampled else []
        if rows:
            for name, token in zip(names, session.step(rows).argmax(-1).tolist(), strict=True):
                histories[name].append(token)
    assert {name: histories[name][len(texts[name]) :] for name in texts} == expected


def test_logits_are_float32_and_only_of_rows_that_sample(pair):
    model, _ = pair
    session = Session(model)
    rows = [session.row("a", prompt(9), 0, 9, sample=False), session.row("b", prompt(4), 0, 4)]
    logits = session.step(rows)
    assert logits.shape == (1, model.vocab_size)
    assert logits.dtype == torch.float32
    assert session.step([session.row("c", prompt(9), 0, 9, sample=False)]).shape == (0, model.vocab_size)


def test_what_is_known_of_a_model(directories):
    model = Model.load(settings(directories["llama"], served_name="mine", context_length=100))
    assert model.name == "mine"
    assert model.shapes == ModelShapes.plain([LayerShape(2, 16, 16)] * 3)
    assert model.vocab_size == tiny_models.VOCAB
    assert model.context_length == 100
    assert model.eos_token_ids == (tiny_models.EOS, tiny_models.END)
    assert (model.dtype, model.device) == (torch.float32, torch.device("cpu"))
    assert model.directory == directories["llama"]
    plain = Model.load(settings(directories["llama"]))
    assert (plain.name, plain.context_length) == ("llama", tiny_models.CONTEXT)


def test_config_digest_sees_what_matters(directories, tmp_path):
    path = shutil.copytree(directories["llama"], tmp_path / "copy")
    digest = Model.load(settings(directories["llama"])).config_digest
    edit_config(path, transformers_version="9.9")
    assert Model.load(settings(path)).config_digest == digest
    edit_config(path, rms_norm_eps=1e-5)
    assert Model.load(settings(path)).config_digest != digest


def test_bfloat16_is_close(directories):
    model = Model.load(settings(directories["llama"], dtype="bfloat16"))
    assert model.dtype == torch.bfloat16
    session = Session(model)
    assert session.step([session.row("a", [1], 0, 1)]).dtype == torch.float32


def edit_config(path: Path, **values: object) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def refused(path: Path | str, **more: object) -> str:
    with pytest.raises(ModelError) as caught:
        Model.load(settings(path, **more))
    return str(caught.value)


@pytest.fixture
def broken(directories, tmp_path) -> Path:
    """A good model to damage."""
    return shutil.copytree(directories["llama"], tmp_path / "broken")


def test_refuses_paths_that_are_no_model(tmp_path, broken, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "model.path: there is no directory /no/such/model" in refused("/no/such/model")
    assert "neither a directory nor a hub name in the local cache" in refused("nosuchmodel")
    assert "neither a directory nor in the local hub cache" in refused("nobody/nosuchmodel")
    assert "is a file; give the Hugging Face directory" in refused(broken / "config.json")
    assert "has no config.json" in refused(tmp_path)
    (broken / "config.json").write_text("{")
    assert "config.json of" in refused(broken)


def test_refuses_damaged_weights(broken):
    weights = broken / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-100])
    assert "model.safetensors is damaged" in refused(broken)
    weights.write_bytes(b"\xff" * 1000)
    assert "model.safetensors is damaged" in refused(broken)
    weights.unlink()
    assert "has no safetensors" in refused(broken)
    (broken / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"w": "gone.safetensors"}})
    )
    assert "gone.safetensors is listed in the index but missing" in refused(broken)
    (broken / "model.safetensors.index.json").write_text("[]")
    assert "model.safetensors.index.json is damaged" in refused(broken)


def test_refuses_missing_weights(broken):
    edit_config(broken, num_hidden_layers=4)
    assert "lacks 9 weights, model.layers.3" in refused(broken)


def test_refuses_settings_the_model_cannot_follow(broken):
    assert "model.context_length: 513 is more than the 512 tokens" in refused(broken, context_length=513)
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match=r"model\.device: cuda was asked for"):
            Model.load(ModelSettings(path=str(broken), device="cuda"))


def test_refuses_what_is_no_causal_lm(tmp_path):
    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    BertModel(config).save_pretrained(tmp_path)
    assert "is a BertModel, not a causal LM" in refused(tmp_path)
