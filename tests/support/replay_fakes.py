"""Small workloads and runs for the tests of the replay."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stratakv.cluster.replay.multiturn import MultiturnSettings, multiturn
from stratakv.cluster.replay.report import Report
from stratakv.cluster.replay.request import ReplayRequest
from stratakv.cluster.replay.run import run_alone
from stratakv.cluster.replay.settings import ReplicaSettings


def ignore() -> None:
    """Nobody watches the progress."""


def alone(workload: MultiturnSettings, **replica: Any) -> Report:
    settings = ReplicaSettings(page_size=workload.page_size, **replica)
    return run_alone(multiturn(workload), settings, ignore)


def prompt(name: str, pages: str, page_size: int = 4, tail: int = 1) -> ReplayRequest:
    """A prompt of one page for each letter of `pages` and `tail` tokens more; prefixes that are equal share pages."""
    keys = [pages[: end + 1].encode().ljust(32, b".") for end in range(len(pages))]
    return ReplayRequest(0, 0.0, len(pages) * page_size + tail, 1, keys, 0, name)


def write_trace(file: Path, lines: Sequence[object]) -> Path:
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


def line(timestamp: int, length: int, ids: Sequence[int], output: int = 1) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": length, "output_length": output, "hash_ids": list(ids)}
