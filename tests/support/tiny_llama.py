"""Makes a model directory that is real in every respect but its size: config, weights, tokenizer, chat template."""

import json
from pathlib import Path

CONTEXT = 2048
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_llama(directory: Path) -> Path:
    """Write the model to `directory` and return it. The weights are random but always the same."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = write_byte_tokenizer(directory)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def write_byte_tokenizer(directory: Path) -> int:
    """Write a tokenizer with a token per byte and three special ones; the size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    directory.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*_SPECIAL, *alphabet]
    tokenizer = Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[2],
        "chat_template": _TEMPLATE,
        "model_max_length": CONTEXT,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(names)
