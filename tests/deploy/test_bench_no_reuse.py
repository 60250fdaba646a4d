"""`bench no-reuse`: its arithmetic, and one short run on real workers."""

import json
from pathlib import Path

import pytest

from stratakv.deploy.bench_no_reuse import Block, Lost, Pair, Shape, Verdict, run

SHAPE = Shape(pairs=3, requests=2, prompt_tokens=20, output_tokens=3, page_size=4, seed=1)


def test_no_prompt_comes_twice_but_in_its_pair():
    prompts = [tuple(prompt) for pair in range(-3, 30) for prompt in SHAPE.prompts(pair, 1000)]
    assert len(set(prompts)) == 33 * 2
    assert SHAPE.prompts(4, 1000) == SHAPE.prompts(4, 1000)
    assert (SHAPE.block_tokens, SHAPE.block_pages) == (46, 12)


def test_what_is_lost_is_a_share_of_throughput():
    lost = Lost.of([9.0, 10.0, 10.0], [10.0, 10.0, 8.0])
    assert (lost.median, lost.lower, lost.upper) == pytest.approx((0, -0.125, 0.05))


def test_each_clock_has_its_own_verdict():
    pair = Pair(Block(answered=1, wall=2, cpu=3), Block(answered=1, wall=4, cpu=4))
    verdict = Verdict.of([pair, pair])
    assert (verdict.answered.median, verdict.wall.median, verdict.cpu.median) == pytest.approx((0, 0.5, 0.25))


@pytest.mark.timeout(120)
def test_a_run_on_two_workers(tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    verdict = run(tiny_llama, SHAPE, tmp_path / "figures.json")
    whole = json.loads((tmp_path / "figures.json").read_text())
    assert len(whole["pairs"]) == 3
    assert whole["lost"]["wall"]["median"] == verdict.wall.median
    assert all(
        pair[side]["wall"] >= pair[side]["answered"] > 0 for pair in whole["pairs"] for side in ("off", "on")
    )
    assert "3 pairs of blocks of 2 x 20 + 3 tokens" in capsys.readouterr().out
