"""`stratakv bench multiturn --spawn` as a user runs it: nothing is lost of what the tiers hold, and nothing is left."""

import json

import pytest
from e2e import Home

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
WORKLOAD = [
    "--clients",
    "6",
    "--rounds",
    "4",
    "--new-tokens",
    "20",
    "--output-tokens",
    "4",
    "--parallel",
    "1",
]


def test_the_store_gives_back_all_that_the_workload_can_reuse(home: Home, tiny_llama):
    home.extra["TMPDIR"] = str(home.folder)
    file = home.folder / "figures.json"
    flags = ["--spawn", "--only", "device+host+store", "--page-size", "4", "--host-ratio", "1"]
    done = home.run("bench", "multiturn", "--model", str(tiny_llama), *WORKLOAD, *flags, "--json", str(file))
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(file.read_text())["runs"]
    assert run["hit_rate"] == pytest.approx(run["ceiling"])
    assert run["tokens_by_tier"]["store"] > 0
    assert run["computed_tokens"] + sum(run["tokens_by_tier"].values()) == run["prompt_tokens"]
    assert "effective input tokens/s" in done.stdout
    assert home.records() == []
    assert list(home.folder.glob("stratakv-bench-*")) == []
