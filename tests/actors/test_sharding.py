"""What can be split over ranks, and what is refused by name before a weight is read."""

from pathlib import Path

import pytest
import torch
from transformers import (
    FalconH1Config,
    GptOssConfig,
    LlamaConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from stratakv.actors.worker.checkpoint import ModelError
from stratakv.actors.worker.sharding import load_sharded, split_for

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize("config", [LlamaConfig, Qwen3Config, Qwen3MoeConfig], ids=lambda c: c.model_type)
def test_families_whose_attention_is_split(config: type[PreTrainedConfig]):
    split = split_for(config(**HEADS), 2)
    assert (split.groups, split.copies) == (2, 1)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (GptOssConfig(**HEADS), "gpt_oss .*does not split its attention heads"),
        (Phi3Config(**HEADS), "phi3 .*does not split its attention heads"),
        (Qwen3NextConfig(**HEADS), "qwen3_next .*layers of type linear_attention"),
        (FalconH1Config(**HEADS), "falcon_h1 cannot be split over ranks"),
    ],
    ids=lambda value: value.model_type if isinstance(value, PreTrainedConfig) else "",
)
def test_families_that_cannot_be_split_are_refused_by_name(config: PreTrainedConfig, why: str):
    with pytest.raises(ModelError, match=rf"model\.path: {why}.*set tensor_parallel to 1"):
        split_for(config, 2)


def test_sizes_that_do_not_divide_are_refused_before_anything_is_read(tmp_path: Path):
    config = LlamaConfig(hidden_size=576, num_attention_heads=9, num_key_value_heads=3)
    with pytest.raises(ModelError, match=r"llama: tensor_parallel is 2.* can be split over 1, 3, 9 ranks"):
        load_sharded(tmp_path, config, torch.float32, torch.device("cpu"), rank=0, ranks=2)
