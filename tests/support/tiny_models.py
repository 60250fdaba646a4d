"""Tiny random models as Hugging Face directories: all the plumbing of a family in a megabyte, no sense in its words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

VOCAB = 300
BOS, EOS, START, END = 256, 257, 258, 259
"""Special tokens after the 256 bytes; the rest of the vocabulary is unused."""

CONTEXT = 512

_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

_SIZES: dict[str, Any] = {
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


def llama() -> PreTrainedConfig:
    return LlamaConfig(**_SIZES)


def qwen3() -> PreTrainedConfig:
    return Qwen3Config(**_SIZES, head_dim=24)


def gemma2() -> PreTrainedConfig:
    """Softcapped scores and logits; every other layer sees a window of 12 tokens."""
    return Gemma2Config(
        **{**_SIZES, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 12},
        attn_logit_softcapping=2.0,
        final_logit_softcapping=30.0,
    )


def mistral() -> PreTrainedConfig:
    """Every layer sees a window of 12 tokens."""
    return MistralConfig(**_SIZES, sliding_window=12)


FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": llama,
    "qwen3": qwen3,
    "gemma2": gemma2,
    "mistral": mistral,
}


def write_model(
    path: Path, family: str = "llama", seed: int = 0, config: PreTrainedConfig | None = None
) -> Path:
    """Write a seeded float32 model of `family` (or of `config`) and a byte-level tokenizer to `path`, and return it.

    Weights are larger than a fresh model's, so that scores spread, caps bite and greedy tokens vary.
    """
    random_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config or FAMILIES[family](), dtype=torch.float32)
    torch.random.set_rng_state(random_state)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(_spread(name))
    model.generation_config.eos_token_id = [EOS, END]
    model.save_pretrained(path)
    write_tokenizer(path)
    return path


def _spread(name: str) -> float:
    """How much larger than a fresh one the weight `name` is."""
    if "q_norm" in name or "k_norm" in name:
        return 3.0
    if "norm" in name:
        return 1.0
    return 8.0 if "q_proj" in name or "k_proj" in name else 4.0


def write_tokenizer(path: Path) -> None:
    """Write a tokenizer with a token per byte, four special tokens and a chat template to `path`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|bos|>", "<|eos|>", "<|start|>", "<|end|>"])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|end|>")
    wrapped.chat_template = _TEMPLATE
    wrapped.save_pretrained(path)
