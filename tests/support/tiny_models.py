"""Tiny random models as Hugging Face directories: all the plumbing of a family in a megabyte, no sense in its words."""

from pathlib import Path

import torch
from tiny_families import BOS, CONTEXT, END, EOS, FAMILIES, START, VOCAB
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

__all__ = ["BOS", "CONTEXT", "END", "EOS", "FAMILIES", "START", "VOCAB", "write_model", "write_tokenizer"]

_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


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
    """How much larger than a fresh one the weight `name` is. The decay of a recurrence stays what it is."""
    if "q_norm" in name or "k_norm" in name:
        return 3.0
    if "norm" in name or name.endswith((".A_log", ".dt_bias", ".D")):
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
