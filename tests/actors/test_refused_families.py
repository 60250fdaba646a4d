"""What cannot be served right is refused when it is loaded, by what it computes and not by its name."""

from pathlib import Path

import pytest
import tiny_models
from tiny_families import SIZES
from transformers import (
    FalconMambaConfig,
    JambaConfig,
    Llama4TextConfig,
    Mamba2Config,
    MambaConfig,
    PreTrainedConfig,
    RecurrentGemmaConfig,
    RwkvConfig,
)

from stratakv.actors.settings import ModelSettings
from stratakv.actors.worker import checkpoint, selfcheck
from stratakv.actors.worker import model as model_module
from stratakv.actors.worker.model import Model, ModelError
from stratakv.cluster.plan import Row

_MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 4}
_LLAMA4 = {
    **SIZES,
    "intermediate_size_mlp": 96,
    "num_local_experts": 2,
    "num_hidden_layers": 4,
    "head_dim": 16,
}


@pytest.fixture
def unknown(monkeypatch):
    """No family is known by name: what is refused is refused by what it computes."""
    monkeypatch.setattr(checkpoint, "_refuse_known", lambda config: None)


def load(path: Path) -> Model:
    return Model.load(ModelSettings(path=str(path), device="cpu"))


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(path)
    return str(caught.value)


def refused_config(path: Path, config: PreTrainedConfig) -> str:
    return refused(tiny_models.write_model(path, config=config))


@pytest.mark.parametrize(
    "config",
    [
        MambaConfig(**_MAMBA),
        FalconMambaConfig(**_MAMBA),
        Mamba2Config(**_MAMBA, num_heads=4, head_dim=16, n_groups=1),
    ],
    ids=lambda config: config.model_type,
)
def test_models_without_attention(tmp_path, unknown, config):
    assert f"{config.model_type} cannot be served from paged memory (no layer keeps KV" in refused_config(
        tmp_path, config
    )


def test_rwkv(tmp_path, unknown):
    config = RwkvConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32)
    assert "rwkv cannot be served from paged memory" in refused_config(tmp_path, config)


def test_mamba_1_between_attention(tmp_path, unknown):
    """Its scan of several tokens begins from nothing, whatever the state."""
    config = JambaConfig(
        **SIZES, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, num_experts=2,
        mamba_d_state=8, mamba_dt_rank=4, use_mamba_kernels=False,
    )  # fmt: skip
    assert "a prompt cut at token 13 and the whole one differ by" in refused_config(tmp_path, config)


def test_recurrent_gemma(tmp_path, unknown):
    """It keeps its state in its own modules."""
    config = RecurrentGemmaConfig(
        **{**SIZES, "num_hidden_layers": 3}, lru_width=64, attention_window_size=16,
        block_types=["recurrent", "recurrent", "attention"],
    )  # fmt: skip
    assert "a prompt cut at token 13 and the whole one differ by" in refused_config(tmp_path, config)


@pytest.mark.parametrize(
    ("config", "architecture", "message"),
    [
        (Llama4TextConfig(num_hidden_layers=4), "Llama4ForCausalLM", "llama4_text uses chunked attention (Llama 4)"),
        (JambaConfig(), "JambaForCausalLM", "jamba has Mamba-1 layers"),
        (RwkvConfig(), "RwkvForCausalLM", "rwkv keeps recurrent state only"),
        (RecurrentGemmaConfig(), "RecurrentGemmaForCausalLM", "recurrent_gemma keeps recurrent state in its modules"),
    ],
    ids=lambda value: value.model_type if isinstance(value, PreTrainedConfig) else "",
)  # fmt: skip
def test_known_by_name_before_a_weight_is_read(tmp_path, config, architecture, message):
    config.architectures = [architecture]
    config.save_pretrained(tmp_path)
    assert f"model.path: {message}" in refused(tmp_path)


def test_llama_4(tmp_path, unknown):
    """Right within a chunk of attention, wrong beyond: only a prompt that is longer finds it."""
    message = refused_config(tmp_path, Llama4TextConfig(**_LLAMA4, attention_chunk_size=40))
    assert (
        "a prompt of 64 tokens continued from a checkpoint at token 56 and the whole one differ by" in message
    )


def test_attention_that_forgets_the_window(tmp_path, monkeypatch):
    """Served by such an attention, mistral must be refused with the amount."""
    path = tiny_models.write_model(tmp_path, "mistral")
    right = model_module.attention.paged_attention

    def without_window(*args, sliding_window=None, **kwargs):
        return right(*args, **kwargs)

    monkeypatch.setattr(model_module.attention, "paged_attention", without_window)
    message = refused(path)
    assert "the paged forward of a prompt and that of transformers differ by" in message
    monkeypatch.undo()
    load(path)


def test_chunks_at_wrong_positions(tmp_path, monkeypatch):
    """A model that computes positions of its own is right in one piece and wrong in two."""
    right = Model.forward

    def restarts(self, rows, memory):
        return right(
            self, [Row(row.tokens, 0, row.pages[: -(-len(row.tokens) // 4)], True) for row in rows], memory
        )

    monkeypatch.setattr(Model, "forward", restarts)
    path = tiny_models.write_model(tmp_path, "llama")
    assert "a prompt cut at token 13 and the whole one differ by" in refused(path)


def test_checkpoints_that_lose_something(tmp_path, monkeypatch):
    path = tiny_models.write_model(tmp_path, "lfm2")
    load(path)
    monkeypatch.setattr(selfcheck, "load_state", lambda *_: None)
    message = refused(path)
    assert (
        "a prompt of 24 tokens continued from a checkpoint at token 16 and the whole one differ by" in message
    )
