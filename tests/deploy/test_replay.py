"""The command `stratakv replay`: what it writes, and how it says what is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from replay_fakes import line, write_trace
from typer.testing import CliRunner

from stratakv.deploy.cli import app
from stratakv.deploy.commands import CommandError

KEYS = {
    "prompt_tokens", "computed_tokens", "tokens_by_tier", "hit_rate", "ceiling", "hit_rate_by_round",
    "ceiling_by_round", "seconds",
}  # fmt: skip
SMALL = ["replay", "multiturn", "--clients", "2", "--rounds", "3", "--device-tokens", "20000"]


def run(*arguments: str) -> str:
    """What the command prints. Raises what it fails with."""
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def trace(folder: Path) -> Path:
    return write_trace(
        folder / "trace.jsonl", [line(1000 * n, 40, [0, *range(9 * n + 1, 9 * n + 10)]) for n in range(6)] * 2
    )


def test_multiturn_writes_its_figures(tmp_path: Path) -> None:
    figures, plot = tmp_path / "figures.json", tmp_path / "plot.png"
    printed = run(*SMALL, "--tiers", "device+host", "--json", str(figures), "--plot", str(plot))
    report = json.loads(figures.read_text())
    assert report.keys() >= KEYS
    assert report["prompt_tokens"] == 2 * (4096 + 8208 + 12320)
    assert f"{report['computed_tokens']:,}" in printed
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_multiturn_compares_all_tiers(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    run(*SMALL, "--json", str(figures))
    reports = json.loads(figures.read_text())
    assert list(reports) == ["device", "device+host", "device+host+store"]


def test_trace_writes_its_figures(tmp_path: Path) -> None:
    figures, plot = tmp_path / "figures.json", tmp_path / "plot.png"
    printed = run(
        "replay", "trace", str(trace(tmp_path)), "--block-tokens", "4", "--replicas", "2", "--router-policy",
        "round_robin", "--store-tokens", "inf", "--json", str(figures), "--plot", str(plot),
    )  # fmt: skip
    report = json.loads(figures.read_text())
    assert report.keys() >= KEYS
    assert [share["requests"] for share in report["replicas"]] == [6, 6]
    assert report["hit_rate"] <= report["ceiling"]
    assert "optimum" in printed
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["multiturn", "--clients", "0"], "--clients: .* greater than or equal to 1"),
        (["multiturn", "--eviction-policy", "oracle"], "no eviction policy 'oracle'; known are: "),
        (["multiturn", "--write-policy", "oracle"], "no write policy 'oracle'; known are: "),
        (
            ["multiturn", "--host-ratio", "0"],
            "--tiers all asks for a host tier, and --host-ratio 0 leaves it no page",
        ),
        (
            ["multiturn", "--tiers", "device", "--device-tokens", "6400"],
            "needs 8192 tokens .* raise --device-tokens",
        ),
        (["multiturn", "--json", "/nowhere/figures.json"], "there is no folder /nowhere"),
        (["trace", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (
            ["trace", "TRACE", "--store-tokens", "many"],
            "--store-tokens is 'many'; give a number of tokens, inf, or 0",
        ),
        (["trace", "TRACE", "--store-tokens", "inf", "--host-tokens", "0"], "store_tokens asks for a store"),
        (["trace", "TRACE", "--router-policy", "oracle"], "no routing policy 'oracle'; known are: "),
        (
            ["trace", "TRACE", "--block-tokens", "8"],
            r"line 1: input_length is 40, which is 5 blocks of 8 tokens",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, arguments: list[str], message: str) -> None:
    file = str(trace(tmp_path))
    given = [file if argument == "TRACE" else argument for argument in arguments]
    if file in given and "--block-tokens" not in given:
        given += ["--block-tokens", "4"]
    with pytest.raises(CommandError, match=message) as failed:
        run("replay", *given)
    assert failed.value.exit_code == 2


def test_a_number_that_is_none_is_a_usage_error() -> None:
    result = CliRunner().invoke(app, [*SMALL, "--device-tokens", "12x"])
    assert result.exit_code == 2
    assert "--device-tokens" in result.output


def test_the_replay_needs_no_model_and_draws_only_when_asked() -> None:
    code = (
        "import sys, stratakv.deploy.replay\n"
        "assert not {'torch', 'ray', 'matplotlib'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
