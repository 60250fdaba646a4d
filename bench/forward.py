"""Model.forward against plain transformers (sdpa, its own DynamicCache): prefill of 1,024 and decode at batch 1 and 16.

    python bench/forward.py --model DIRECTORY [--json FILE] [--repeat 5] [--pages scattered]

Both run in this process on one torch thread, taking turns, so that both suffer the same neighbours. Medians of wall
time and of the thread's CPU time; the ratio above 1 means that ours is quicker. Outputs are compared as well.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, DynamicCache

from stratakv.actors.settings import ModelSettings
from stratakv.actors.worker.model import Model
from stratakv.cluster.plan import Row
from stratakv.kernels.memory import DeviceMemory

PROMPT = 1024
CONTEXT = 256
PAGE_SIZE = 64
DECODE_STEPS = 24


@dataclass
class Timings:
    """Seconds of each run of one side."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def run(self, work: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
        """Time one call of `work` and return its logits."""
        wall, cpu = time.perf_counter(), time.thread_time()
        logits = work(*arguments)
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.thread_time() - cpu)
        return logits


@dataclass
class Result:
    """One case: median milliseconds of both sides and how much they agree."""

    case: str
    tokens: int
    ours_ms: float
    plain_ms: float
    ratio: float
    ours_cpu_ms: float
    plain_cpu_ms: float
    cpu_ratio: float
    largest_difference: float

    @classmethod
    def of(cls, case: str, tokens: int, ours: Timings, plain: Timings, difference: float) -> "Result":
        ours_ms, plain_ms = 1e3 * statistics.median(ours.wall), 1e3 * statistics.median(plain.wall)
        ours_cpu, plain_cpu = 1e3 * statistics.median(ours.cpu), 1e3 * statistics.median(plain.cpu)
        ratios = plain_ms / ours_ms, plain_cpu / ours_cpu
        return cls(case, tokens, ours_ms, plain_ms, ratios[0], ours_cpu, plain_cpu, ratios[1], difference)


class Plain:
    """transformers as anyone would run it."""

    def __init__(self, path: Path):
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="sdpa"
        )

    def forward(self, tokens: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Logits of the last token of each sequence; `cache` grows."""
        with torch.inference_mode():
            return self._model(input_ids=tokens, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]


class Bench:
    """Both sides and the pool of ours. `pages` is how a request's pages lie: `contiguous` or `scattered`."""

    def __init__(self, path: Path, pages: str, repeat: int):
        self.model = Model.load(ModelSettings(path=str(path), device="cpu", dtype="float32", threads=1))
        self.plain = Plain(path)
        self.repeat = repeat
        self.slots = 160
        order = torch.arange(self.slots) if pages == "contiguous" else torch.randperm(self.slots)
        self.order: list[int] = order.tolist()
        self.memory = DeviceMemory.build(
            self.model.shapes, full=self.slots, page_size=PAGE_SIZE, dtype=self.model.dtype
        )

    def tokens(self, count: int, length: int) -> torch.Tensor:
        return torch.randint(0, self.model.vocab_size, (count, length))

    def rows(self, tokens: torch.Tensor, start: int) -> list[Row]:
        """One row per sequence; sequence i has its own pages."""
        count = -(-(start + tokens.shape[1]) // PAGE_SIZE)
        room = self.slots // len(tokens)
        return [
            Row(tuple(line.tolist()), start, tuple(self.order[i * room : i * room + count]), True)
            for i, line in enumerate(tokens)
        ]

    def prefill(self) -> Result:
        ours, plain, difference = Timings(), Timings(), 0.0
        for turn in range(self.repeat + 1):
            tokens = self.tokens(1, PROMPT)
            rows = self.rows(tokens, 0)
            a = ours.run(self.model.forward, rows, self.memory)
            b = plain.run(self.plain.forward, tokens, DynamicCache())
            difference = _larger(difference, a, b)
            if turn == 0:  # first calls pay for lazily made things
                ours, plain = Timings(), Timings()
        return Result.of(f"prefill {PROMPT}", PROMPT, ours, plain, difference)

    def decode(self, batch: int) -> Result:
        ours, plain, difference = Timings(), Timings(), 0.0
        tokens = self.tokens(batch, CONTEXT)
        cache = DynamicCache()
        self.model.forward(self.rows(tokens, 0), self.memory)
        self.plain.forward(tokens, cache)
        for _ in range(self.repeat):
            for step in range(DECODE_STEPS):
                new = self.tokens(batch, 1)
                rows = self.rows(new, CONTEXT + step)
                a = ours.run(self.model.forward, rows, self.memory)
                b = plain.run(self.plain.forward, new, cache)
                difference = _larger(difference, a, b)
            cache.crop(-DECODE_STEPS)
        return Result.of(f"decode batch {batch}, context {CONTEXT}", batch, ours, plain, difference)


def _larger(difference: float, ours: torch.Tensor, plain: torch.Tensor) -> float:
    """The larger of `difference` and what the logits differ by; a number that is none ends the benchmark."""
    now = float((ours - plain).abs().max())
    if not math.isfinite(now):
        raise SystemExit("the logits are not finite")
    return max(difference, now)


def show(results: list[Result], title: str, difference: str) -> None:
    """Print the table; `difference` says what `largest_difference` counts."""
    table = Table(title=f"{title}, float32, one thread")
    for name in (
        "case",
        "ours ms",
        "plain ms",
        "ratio",
        "ours CPU ms",
        "plain CPU ms",
        "ratio",
        "tokens/s",
        difference,
    ):
        table.add_column(name, justify="left" if name == "case" else "right")
    for r in results:
        table.add_row(
            r.case, f"{r.ours_ms:.1f}", f"{r.plain_ms:.1f}", f"{r.ratio:.3f}", f"{r.ours_cpu_ms:.1f}",
            f"{r.plain_cpu_ms:.1f}", f"{r.cpu_ratio:.3f}", f"{1e3 * r.tokens / r.ours_ms:.0f}",
            f"{r.largest_difference:.2g}",
        )  # fmt: skip
    console = Console()
    Console(width=max(console.width, 120)).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--repeat", type=int, default=5, help="prefills, and decode sequences, per case")
    parser.add_argument("--pages", choices=["contiguous", "scattered"], default="contiguous")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    bench = Bench(arguments.model, arguments.pages, arguments.repeat)
    results = [bench.prefill(), bench.decode(1), bench.decode(16)]
    show(results, f"Model.forward and plain transformers, pages {arguments.pages}", "max logit diff")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
