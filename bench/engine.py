"""The engine against plain transformers (sdpa, its own DynamicCache): prefill of 1,024 and decode at batch 1 and 16.

    python bench/engine.py --model DIRECTORY [--json FILE] [--repeat 5]

The engine is whole: planning, the page tree, write-through to host memory, forward, sampling. Prompts never
repeat, so it gains nothing from its cache. Plain transformers does forward and argmax. Both run in this process on
one torch thread, taking turns, so that both suffer the same neighbours. Medians; a ratio above 1 means that the
engine is quicker.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from forward import CONTEXT, DECODE_STEPS, PAGE_SIZE, PROMPT, Plain, Result, Timings, show
from transformers import DynamicCache

from stratakv.actors.settings import ModelSettings, SchedulerSettings
from stratakv.actors.worker.head import Head
from stratakv.actors.worker.model import Model
from stratakv.actors.worker.rank import Rank
from stratakv.actors.worker.request import Request, RequestId
from stratakv.cluster.agreement import LocalGroup, SlotTable
from stratakv.cluster.messages import Generate, Sampling, pack_tokens
from stratakv.kernels.memory import DeviceMemory
from stratakv.storage.keys import chain
from stratakv.storage.layout import BlockLayout
from stratakv.storage.pools import HostBlocks
from stratakv.storage.settings import CacheSettings

DEVICE_SLOTS = 200
HOST_SLOTS = 200


class EngineSide:
    """A head and its rank, stepped by hand."""

    def __init__(self, model: Model):
        layout = BlockLayout(model.shapes.full, PAGE_SIZE, model.dtype.itemsize)
        host = HostBlocks(bytearray(HOST_SLOTS * layout.block_bytes), HOST_SLOTS, layout)
        memory = DeviceMemory.build(model.shapes, full=DEVICE_SLOTS, page_size=PAGE_SIZE, dtype=model.dtype)
        self.rank = Rank(model, memory, host, LocalGroup(), bytes(32), SlotTable())
        self.head = Head(
            CacheSettings(page_size=PAGE_SIZE), SchedulerSettings(token_budget=PROMPT),
            device_slots=DEVICE_SLOTS, host_slots=HOST_SLOTS, eos=(), limit=model.context_length,
        )  # fmt: skip
        self.sent = 0

    def send(self, tokens: list[int], outputs: int) -> None:
        self.sent += 1
        message = Generate(
            id=str(self.sent),
            tokens=pack_tokens(tokens),
            sampling=Sampling(max_tokens=outputs, temperature=0.0),
        )
        keys = chain(tokens, PAGE_SIZE)
        self.head.add(Request(RequestId(b"bench", message.id), message, tokens, keys, PAGE_SIZE))

    def step(self) -> torch.Tensor:
        """One step; the tokens that it sampled."""
        plan = self.head.plan()
        assert plan is not None
        emissions = self.head.absorb(self.rank.execute(plan))
        return torch.tensor([token for emission in emissions for token in emission.delta.tokens])

    def finish(self) -> None:
        """Step until nothing is left."""
        while (plan := self.head.plan()) is not None:
            self.head.absorb(self.rank.execute(plan))


class Bench:
    def __init__(self, path: Path, repeat: int):
        self.model = Model.load(ModelSettings(path=str(path), device="cpu", dtype="float32", threads=1))
        self.plain = Plain(path)
        self.repeat = repeat

    def tokens(self, count: int, length: int) -> torch.Tensor:
        return torch.randint(0, self.model.vocab_size, (count, length))

    def prefill(self) -> Result:
        ours, plain, engine = Timings(), Timings(), EngineSide(self.model)
        differ = 0
        for turn in range(self.repeat + 1):
            tokens = self.tokens(1, PROMPT)
            engine.send(tokens[0].tolist(), 1)
            a = ours.run(engine.step)
            b = plain.run(lambda: self.plain.forward(tokens, DynamicCache()).argmax(-1))  # noqa: B023
            differ += int((a != b).sum())
            engine.finish()
            if turn == 0:  # first calls pay for lazily made things
                ours, plain = Timings(), Timings()
        return Result.of(f"prefill {PROMPT}", PROMPT, ours, plain, float(differ))

    def decode(self, batch: int) -> Result:
        ours, plain, differ = Timings(), Timings(), 0
        for _ in range(self.repeat):
            tokens, engine, cache = self.tokens(batch, CONTEXT), EngineSide(self.model), DynamicCache()
            for line in tokens:
                engine.send(line.tolist(), DECODE_STEPS + 2)
            self.plain.forward(tokens, cache)
            while len(engine.head.scheduler.running) < batch or any(
                request.output_tokens == 0 for request in engine.head.scheduler.running
            ):
                engine.step()
            for _ in range(DECODE_STEPS // 2):
                new = torch.tensor([[request.tokens[-1]] for request in engine.head.scheduler.running])
                a = ours.run(engine.step)
                b = plain.run(lambda: self.plain.forward(new, cache).argmax(-1))  # noqa: B023
                differ += int((a != b).sum()) if batch == 1 else 0
        return Result.of(f"decode batch {batch}, context {CONTEXT}", batch, ours, plain, float(differ))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--repeat", type=int, default=5, help="prefills, and decode sequences, per case")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    bench = Bench(arguments.model, arguments.repeat)
    results = [bench.prefill(), bench.decode(1), bench.decode(16)]
    show(results, "The engine and plain transformers", "tokens that differ (single request)")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
