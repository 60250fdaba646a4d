"""Configs of tiny models, one for each family that is served: every kind of layer of the family, at its smallest."""

from collections.abc import Callable
from typing import Any

from transformers import (
    BambaConfig,
    DeepseekV3Config,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    NemotronHConfig,
    OlmoHybridConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    Zamba2Config,
)

VOCAB = 300
BOS, EOS, START, END = 256, 257, 258, 259
"""Special tokens after the 256 bytes; the rest of the vocabulary is unused."""

CONTEXT = 512
WINDOW, WIDE_WINDOW = 12, 40
"""Tokens that the sliding layers see: less than a page of 16 tokens, and more."""

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}

_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
_DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}


def _llama() -> PreTrainedConfig:
    return LlamaConfig(**SIZES)


def _qwen3() -> PreTrainedConfig:
    return Qwen3Config(**SIZES, head_dim=24)


def _qwen3_moe() -> PreTrainedConfig:
    return Qwen3MoeConfig(
        **SIZES, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True
    )  # fmt: skip


def _mistral() -> PreTrainedConfig:
    """Every layer sees a window."""
    return MistralConfig(**SIZES, sliding_window=WINDOW)


def _gemma2() -> PreTrainedConfig:
    """Softcapped scores and logits; every other layer sees a window."""
    return Gemma2Config(
        **SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW,
        attn_logit_softcapping=2.0, final_logit_softcapping=30.0,
    )  # fmt: skip


def _gemma3() -> PreTrainedConfig:
    """Two layers of three see a window, and rotate by another base."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    return Gemma3TextConfig(
        **SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW, layer_types=kinds
    )


def _gpt_oss() -> PreTrainedConfig:
    """Attention sinks; every other layer sees a window, a wider one than in the other families."""
    return GptOssConfig(
        **SIZES, head_dim=16, sliding_window=WIDE_WINDOW, num_local_experts=4, num_experts_per_tok=2
    )


def _deepseek_v3() -> PreTrainedConfig:
    """Compressed latents of 24 + 8 elements, expanded to four heads of 24 and 16."""
    sizes = {**SIZES, "num_key_value_heads": 4}
    return DeepseekV3Config(
        **sizes, kv_lora_rank=24, q_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
        n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, n_shared_experts=1,
        moe_intermediate_size=32, first_k_dense_replace=1,
    )  # fmt: skip


def _falcon_h1() -> PreTrainedConfig:
    """Attention and Mamba-2 side by side in each layer."""
    return FalconH1Config(**{**SIZES, "num_hidden_layers": 2}, **_MAMBA, mamba_d_ssm=128, head_dim=16)


def _bamba() -> PreTrainedConfig:
    return BambaConfig(**SIZES, **_MAMBA, attn_layer_indices=[1])


def _granitemoehybrid() -> PreTrainedConfig:
    return GraniteMoeHybridConfig(
        **SIZES, **_MAMBA, layer_types=["mamba", "attention", "mamba"], num_local_experts=4, num_experts_per_tok=2,
        shared_intermediate_size=32,
    )  # fmt: skip


def _nemotron_h() -> PreTrainedConfig:
    """Layers that keep KV, a state, or nothing."""
    sizes = {name: value for name, value in SIZES.items() if name != "num_hidden_layers"}
    return NemotronHConfig(
        **sizes, layers_block_type=["mamba", "attention", "mlp", "mamba"], head_dim=16, mamba_num_heads=8,
        mamba_head_dim=16, n_groups=1, ssm_state_size=8, chunk_size=8,
    )  # fmt: skip


def _qwen3_next() -> PreTrainedConfig:
    return Qwen3NextConfig(
        **SIZES, **_DELTA, head_dim=16, layer_types=["linear_attention", "full_attention", "linear_attention"],
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
    )  # fmt: skip


def _lfm2() -> PreTrainedConfig:
    return Lfm2Config(**SIZES, layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False)


def _olmo_hybrid() -> PreTrainedConfig:
    return OlmoHybridConfig(
        **SIZES, **_DELTA, layer_types=["linear_attention", "full_attention", "linear_attention"]
    )


def _zamba2() -> PreTrainedConfig:
    """Two layers share one attention module, and keep KV each for itself."""
    sizes = {**SIZES, "num_hidden_layers": 4, "num_key_value_heads": 4}
    return Zamba2Config(
        **sizes, layer_types=["linear_attention", "hybrid", "linear_attention", "hybrid"], hybrid_layer_ids=[1, 3],
        mamba_d_state=8, n_mamba_heads=8, mamba_headdim=16, mamba_ngroups=1, chunk_size=8, num_mem_blocks=1,
        adapter_rank=8,
    )  # fmt: skip


FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "mistral": _mistral,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek_v3,
    "falcon_h1": _falcon_h1,
    "bamba": _bamba,
    "granitemoehybrid": _granitemoehybrid,
    "nemotron_h": _nemotron_h,
    "qwen3_next": _qwen3_next,
    "lfm2": _lfm2,
    "olmo_hybrid": _olmo_hybrid,
    "zamba2": _zamba2,
}

PLAIN = ("llama", "qwen3", "qwen3_moe", "mistral", "deepseek_v3")
"""Families that keep nothing but pages of `full`."""
SLIDING = ("gemma2", "gemma3", "gpt_oss")
"""Families with pages of `sliding` too."""
RECURRENT = (
    "falcon_h1", "bamba", "granitemoehybrid", "nemotron_h", "qwen3_next", "lfm2", "olmo_hybrid", "zamba2",
)  # fmt: skip
"""Families with recurrent state too."""
