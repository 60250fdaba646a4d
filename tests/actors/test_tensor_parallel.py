"""A replica of several ranks, without Ray: it says what one rank says, from every tier, and no fault makes it hang or
disagree."""

import re
from pathlib import Path

import pytest
from replica import Replica
from tiny_models import FAMILIES, write_model
from transformers import Qwen3MoeConfig

from stratakv.deploy import model_fetch
from stratakv.deploy.narrate import Narrator

PROMPTS = [[(a * i * i + 3 * i + a) % 256 for i in range(90 + 11 * a)] for a in range(1, 5)]


def moe() -> Qwen3MoeConfig:
    sizes = FAMILIES["qwen3"]().to_dict()
    kept = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "max_position_embeddings", "bos_token_id", "eos_token_id")  # fmt: skip
    return Qwen3MoeConfig(
        **{key: sizes[key] for key in kept}, head_dim=16, moe_intermediate_size=32, num_experts=4,
        num_experts_per_tok=2, tie_word_embeddings=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    made = {family: write_model(folder / family, family) for family in ("llama", "qwen3")}
    return {**made, "qwen3_moe": write_model(folder / "qwen3_moe", config=moe())}


def answers(replica: Replica, count: int = 12) -> list[list[int]]:
    """Every prompt twice: computed, and from what is cached by then."""
    return [replica.ask(prompt, count).tokens for prompt in PROMPTS * 2]


@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3", marks=pytest.mark.full), "qwen3_moe"])
def test_two_ranks_say_what_one_says(models: dict[str, Path], tmp_path: Path, family: str):
    with Replica(models[family], 1, tmp_path) as one:
        expected = answers(one)
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS)
    with Replica(models[family], 2, tmp_path) as two:
        assert answers(two) == expected
        two.check()
        two.stop()


@pytest.mark.full
def test_a_real_model_on_three_ranks(tmp_path: Path):
    """9 heads and 3 KV heads. Greedy tokens, which may only differ where two logits are all but equal."""
    model = model_fetch.fetch("smollm2", Narrator())
    sizes = {"page_size": 16, "device_memory": 2**26, "host_memory": 2**26}
    with Replica(model, 1, tmp_path, cache=sizes) as one:
        expected = answers(one)
    with Replica(model, 3, tmp_path, cache=sizes) as three:
        assert answers(three) == expected
        three.check()


@pytest.mark.full
def test_more_ranks_than_kv_heads_keep_copies(models: dict[str, Path], tmp_path: Path):
    with Replica(models["llama"], 1, tmp_path) as one:
        expected = answers(one)
    with Replica(models["llama"], 4, tmp_path) as four:
        assert answers(four) == expected
        four.check()


def test_heads_that_do_not_divide_are_refused(models: dict[str, Path], tmp_path: Path):
    replica = Replica(models["llama"], 3, tmp_path)
    replica.wait_until(lambda: len(replica.failures) == 3)
    replica.end()
    for failure in replica.failures.values():
        assert re.search(
            "StartError: .*tensor_parallel is 3.* 4 attention heads.* over 1, 2, 4 ranks", failure
        )
