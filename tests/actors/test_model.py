"""The model layer: what it computes over the paged pool is what transformers computes; what it cannot, it refuses."""

import json
import shutil
from pathlib import Path

import pytest
import tiny_models
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    Llama4TextConfig,
    MambaConfig,
    Qwen3NextConfig,
)

from stratakv.actors.settings import ModelSettings
from stratakv.actors.worker import model as model_module
from stratakv.actors.worker.model import Model, ModelError
from stratakv.cluster.plan import Row
from stratakv.kernels.pool import DevicePool
from stratakv.kernels.shapes import LayerShape

PAGE = 8


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: tiny_models.write_model(root / family, family) for family in tiny_models.FAMILIES}


@pytest.fixture(scope="module", params=tiny_models.FAMILIES)
def pair(request, directories):
    """A model of each family, and the same one as transformers runs it."""
    path = directories[request.param]
    plain = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    return Model.load(settings(path)), plain


def settings(path: Path, **more: object) -> ModelSettings:
    return ModelSettings(path=str(path), device="cpu", **more)


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def plain_greedy(plain, tokens: list[int], count: int) -> list[int]:
    ids = torch.tensor([tokens])
    out = plain.generate(
        ids, max_new_tokens=count, do_sample=False, eos_token_id=None, attention_mask=ids >= 0
    )
    return out[0, len(tokens) :].tolist()


class Session:
    """Runs requests over one pool, whose pages are handed out in a scrambled order and hold rubbish at first."""

    def __init__(self, model: Model, slots: int = 96):
        self.model = model
        self.pool = DevicePool(model.shapes, slots, PAGE, model.dtype)
        for memory in (*self.pool.keys, *self.pool.values):
            memory.fill_(float("nan"))
        self.free = torch.randperm(slots, generator=torch.Generator().manual_seed(1)).tolist()
        self.pages: dict[str, list[int]] = {}

    def row(self, name: str, tokens: list[int], start: int, end: int, sample: bool = True) -> Row:
        pages = self.pages.setdefault(name, [])
        while len(pages) * PAGE < end:
            pages.append(self.free.pop())
        return Row(tuple(tokens[start:end]), start, tuple(pages[: -(-end // PAGE)]), sample)

    def step(self, rows: list[Row]) -> list[int]:
        return self.model.forward(rows, self.pool).argmax(-1).tolist()

    def greedy(
        self, name: str, tokens: list[int], count: int, cuts: tuple[int, ...] = (), start: int = 0
    ) -> list[int]:
        tokens = list(tokens)
        for cut in (*cuts, len(tokens)):
            drawn = self.step([self.row(name, tokens, start, cut)])
            start = cut
        for _ in range(count - 1):
            tokens += drawn
            drawn = self.step([self.row(name, tokens, len(tokens) - 1, len(tokens))])
        return (tokens + drawn)[-count:]


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
def test_a_cached_prefix_equals_computing_it(pair, cached):
    model, plain = pair
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
            for name, token in zip(names, session.step(rows), strict=True):
                histories[name].append(token)
    assert {name: histories[name][len(texts[name]) :] for name in texts} == expected


def test_logits_are_float32_and_only_of_rows_that_sample(pair):
    model, _ = pair
    session = Session(model)
    rows = [session.row("a", prompt(9), 0, 9, sample=False), session.row("b", prompt(4), 0, 4)]
    logits = model.forward(rows, session.pool)
    assert logits.shape == (1, model.vocab_size)
    assert logits.dtype == torch.float32
    assert model.forward([session.row("c", prompt(9), 0, 9, sample=False)], session.pool).shape == (
        0,
        model.vocab_size,
    )


def test_what_is_known_of_a_model(directories):
    model = Model.load(settings(directories["qwen3"], served_name="mine", context_length=100))
    assert model.name == "mine"
    assert model.shapes == [LayerShape(2, 24, 24)] * 3
    assert model.vocab_size == tiny_models.VOCAB
    assert model.context_length == 100
    assert model.eos_token_ids == (tiny_models.EOS, tiny_models.END)
    assert (model.dtype, model.device) == (torch.float32, torch.device("cpu"))
    assert model.directory == directories["qwen3"]
    plain = Model.load(settings(directories["qwen3"]))
    assert (plain.name, plain.context_length) == ("qwen3", tiny_models.CONTEXT)


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
    assert (
        Session(model).model.forward([Row((1,), 0, (0,), True)], Session(model).pool).dtype == torch.float32
    )


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


def test_refuses_recurrent_state_by_name(tmp_path):
    mamba = MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=64, state_size=4)
    tiny_models.write_model(tmp_path / "mamba", config=mamba)
    assert "mamba needs recurrent state checkpoints, which this version does not serve" in refused(
        tmp_path / "mamba"
    )
    Qwen3NextConfig(num_hidden_layers=4).save_pretrained(tmp_path / "hybrid")
    message = refused(tmp_path / "hybrid")
    assert "qwen3_next (layers of type linear_attention) needs recurrent state checkpoints" in message


def test_refuses_chunked_attention_by_name(tmp_path):
    config = Llama4TextConfig(num_hidden_layers=4)
    config.architectures = ["Llama4ForCausalLM"]
    config.save_pretrained(tmp_path)
    assert "llama4_text uses chunked attention (Llama 4)" in refused(tmp_path)


def test_the_self_check_notices_wrong_attention(directories, monkeypatch):
    """Served by an attention that forgets the window, mistral must be refused with the amount."""
    right = model_module.attention.paged_attention

    def without_window(*args, sliding_window=None, **kwargs):
        return right(*args, **kwargs)

    monkeypatch.setattr(model_module.attention, "paged_attention", without_window)
    message = refused(directories["mistral"])
    assert "the paged forward of a prompt and that of transformers differ by" in message
    monkeypatch.undo()
    Model.load(settings(directories["mistral"]))


def test_the_self_check_notices_wrong_chunks(directories, monkeypatch):
    """A model that computes positions of its own is right in one piece and wrong in two."""
    right = Model.forward

    def restarts(self, rows, pool):
        return right(
            self, [Row(row.tokens, 0, row.pages[: -(-len(row.tokens) // 4)], True) for row in rows], pool
        )

    monkeypatch.setattr(Model, "forward", restarts)
    assert "a prompt cut at token 13 and the whole one differ by" in refused(directories["llama"])
