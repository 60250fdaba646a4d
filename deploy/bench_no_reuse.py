"""`stratakv bench no-reuse`: what the lower tiers cost where they can give nothing back.

Two workers in this process, each a whole rank behind its ZeroMQ link, with its own engine, pools and threads: one
with a device pool alone, one with host memory and a store too. They take turns at blocks of requests, the other one
asleep, and both get the same prompts; so two clusters need not share the machine, and what disturbs it disturbs both.
Both compute with one copy of the weights: of two copies one lies better in memory, and is quicker by some per cent.
Which goes first changes from pair to pair. A block ends when the engine is idle and all of it is in the store, so
that write-behind is paid for by the side that caused it. Gateway and router, the same for both, are left out.
"""

import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import zmq.asyncio
from rich.console import Console
from rich.table import Table

from stratakv.actors.gateway.link import HeadLink
from stratakv.actors.settings import ModelSettings, SchedulerSettings
from stratakv.actors.worker.config import StartError, WorkerConfig
from stratakv.actors.worker.model import Model, ModelError
from stratakv.actors.worker.worker import Worker
from stratakv.cluster.curve import new_key_pair
from stratakv.cluster.messages import Generate, Sampling, Usage, pack_tokens
from stratakv.cluster.rendezvous import Nobody
from stratakv.deploy.bench_multiturn import progress_bar
from stratakv.deploy.bench_report import Broken
from stratakv.deploy.bench_spawn import store_folder
from stratakv.deploy.demo_settings import layer_shapes
from stratakv.storage.layout import BlockLayout
from stratakv.storage.settings import CacheSettings
from stratakv.storage.stores.settings import StoreSettings

_FLOAT32 = 4
_ANSWER_DEADLINE = 600.0
_IDLE_DEADLINE = 120.0
_POOL_BLOCKS = 2
"""Blocks of requests that the device pool holds: few, so that it evicts all the time, as a busy server does."""
_HOST_RATIO = 2
_STORE_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """`pairs` pairs of blocks of `requests` requests at once: `prompt_tokens` fresh ids, and `output_tokens` more."""

    pairs: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    page_size: int
    seed: int

    @property
    def block_tokens(self) -> int:
        """Tokens that a block computes or puts out."""
        return self.requests * (self.prompt_tokens + self.output_tokens)

    @property
    def block_pages(self) -> int:
        """Pages that a block takes."""
        return self.requests * -(-(self.prompt_tokens + self.output_tokens) // self.page_size)

    def prompts(self, pair: int, vocabulary: int) -> list[list[int]]:
        """The prompts of both blocks of a pair, unlike those of any other."""
        draw = random.Random(f"{self.seed} {pair}")
        return [[draw.randrange(vocabulary) for _ in range(self.prompt_tokens)] for _ in range(self.requests)]


@dataclass(frozen=True, slots=True)
class Block:
    """Seconds of one block: of wall time until the last answer and until all was idle, and of CPU time till then."""

    answered: float
    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Pair:
    """The same prompts with the tiers off and on."""

    off: Block
    on: Block


@dataclass(frozen=True, slots=True)
class Lost:
    """Share of throughput lost with the tiers on: of all pairs the median and the quartiles. Negative is a gain."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, off: list[float], on: list[float]) -> "Lost":
        """From seconds of at least two pairs."""
        lost = [1 - a / b for a, b in zip(off, on, strict=True)]
        lower, median, upper = statistics.quantiles(lost, n=4, method="inclusive")
        return cls(median, lower, upper)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is lost by each clock. `wall` is the figure that counts."""

    wall: Lost
    answered: Lost
    cpu: Lost

    @classmethod
    def of(cls, pairs: list[Pair]) -> "Verdict":
        """From at least two pairs."""
        return cls(
            Lost.of([pair.off.wall for pair in pairs], [pair.on.wall for pair in pairs]),
            Lost.of([pair.off.answered for pair in pairs], [pair.on.answered for pair in pairs]),
            Lost.of([pair.off.cpu for pair in pairs], [pair.on.cpu for pair in pairs]),
        )


class Side:
    """A worker of its own and a link to it."""

    def __init__(self, worker: Worker, link: HeadLink, vocabulary: int):
        self._worker = worker
        self._link = link
        self.vocabulary = vocabulary
        self._sent = 0

    async def block(self, prompts: list[list[int]], outputs: int) -> Block:
        """Send `prompts` at once; returns when all is answered and nothing is on its way any more. Broken."""
        wall, cpu = time.perf_counter(), time.process_time()
        usages = await asyncio.gather(*(self._answer(prompt, outputs) for prompt in prompts))
        answered = time.perf_counter() - wall
        problems = await self._idle()
        block = Block(answered, time.perf_counter() - wall, time.process_time() - cpu)
        if problems:
            raise Broken("a worker is not sound after a block: " + "; ".join(problems))
        if any(usage.computed != usage.prompt for usage in usages):
            raise Broken("a prompt of which nothing was seen before was found in a cache")
        return block

    async def _idle(self) -> list[str]:
        """Wait until nothing is left to do, the store's writes included. What is wrong then."""
        until = time.monotonic() + _IDLE_DEADLINE
        while (problems := await asyncio.to_thread(self._worker.idle_check)) and time.monotonic() < until:
            await asyncio.sleep(0.05)
        return problems

    async def _answer(self, prompt: list[int], outputs: int) -> Usage:
        self._sent += 1
        sampling = Sampling(max_tokens=outputs, temperature=0.0, ignore_eos=True)
        request = Generate(id=str(self._sent), tokens=pack_tokens(prompt), sampling=sampling)
        usage: Usage | None = None
        async with asyncio.timeout(_ANSWER_DEADLINE), aclosing(self._link.generate(request)) as deltas:
            async for delta in deltas:
                if delta.failure is not None:
                    raise Broken(f"a request failed: {delta.failure.message}")
                usage = delta.usage or usage
        if usage is None:
            raise Broken("an answer came without the account of its prompt tokens")
        return usage


def run(model: Path, shape: Shape, file: Path | None) -> Verdict:
    """Measure, show, and write `file`. Broken; StartError of a worker; UnknownShape."""
    with store_folder() as store:
        pairs = asyncio.run(_measure(model, shape, store))
    verdict = Verdict.of(pairs)
    _show(shape, pairs, verdict)
    if file:
        about = {"model": model.name, "cpus": os.cpu_count()}
        result = {"about": about, "shape": asdict(shape), "lost": asdict(verdict)}
        file.write_text(json.dumps(result | {"pairs": [asdict(pair) for pair in pairs]}, indent=1) + "\n")
    return verdict


async def _measure(model: Path, shape: Shape, store: Path) -> list[Pair]:
    weights = await asyncio.to_thread(_load, model)
    async with _side(model, weights, shape, None) as off, _side(model, weights, shape, store) as on:
        with progress_bar() as bar:
            task = bar.add_task("no-reuse", total=shape.pairs)
            for warm_up in range(1, _POOL_BLOCKS + 2):  # until the device pools are full, and all is made
                await _pair(shape, -warm_up, off, on)
            pairs = []
            for number in range(shape.pairs):
                pairs.append(await _pair(shape, number, off, on))
                bar.advance(task)
    return pairs


async def _pair(shape: Shape, number: int, off: Side, on: Side) -> Pair:
    prompts = shape.prompts(number, off.vocabulary)
    if number % 2:
        second = await on.block(prompts, shape.output_tokens)
        return Pair(await off.block(prompts, shape.output_tokens), second)
    first = await off.block(prompts, shape.output_tokens)
    return Pair(first, await on.block(prompts, shape.output_tokens))


@asynccontextmanager
async def _side(model: Path, weights: Model, shape: Shape, store: Path | None) -> AsyncGenerator[Side]:
    keys = new_key_pair()
    config = _config(model, shape, store, keys.public)
    worker = Worker(config, weights)
    endpoint = await asyncio.to_thread(worker.start, Nobody())
    assert endpoint is not None  # rank 0 has one
    context = zmq.asyncio.Context()
    link = HeadLink(endpoint, keys, config.wire, config.heartbeat, context)
    link.start()
    try:
        yield Side(worker, link, endpoint.card.vocab_size)
    finally:
        await link.close()
        context.destroy(0)
        await asyncio.to_thread(worker.stop)


def _load(model: Path) -> Model:
    try:
        return Model.load(_settings(model))
    except ModelError as error:
        raise StartError(str(error)) from error


def _settings(model: Path) -> ModelSettings:
    return ModelSettings(path=str(model), device="cpu", dtype="float32")


def _config(model: Path, shape: Shape, store: Path | None, gateway_key: str) -> WorkerConfig:
    """A worker with a store and host memory, or with neither; all else is equal."""
    layout = BlockLayout(layer_shapes(model), shape.page_size, _FLOAT32)
    device = _POOL_BLOCKS * shape.block_pages + shape.requests + 1
    host = _HOST_RATIO * device if store else 0
    return WorkerConfig(
        cluster_id=f"bench-{os.getpid()}",
        replica=int(store is not None),
        rank=0,
        generation=1,
        gateway_key=gateway_key,
        model=_settings(model),
        cache=CacheSettings(
            page_size=shape.page_size,
            device_memory=device * layout.payload_bytes,
            host_memory=host * layout.block_bytes,
        ),
        scheduler=SchedulerSettings(max_running=shape.requests),
        store=StoreSettings(
            url=store.as_uri() if store else None,
            capacity=_STORE_BLOCKS * shape.block_pages * layout.block_bytes,
        ),
    )


def _show(shape: Shape, pairs: list[Pair], verdict: Verdict) -> None:
    title = (
        f"{shape.pairs} pairs of blocks of {shape.requests} x {shape.prompt_tokens} + {shape.output_tokens} tokens "
        "that never repeat; medians"
    )
    grid = Table("clock", "tiers off", "tiers on", "lost", "quartiles", title=title, title_justify="left")
    for column in grid.columns[1:]:
        column.justify = "right"
    rows: list[tuple[str, Callable[[Block], float], Lost]] = [
        ("all written", lambda block: block.wall, verdict.wall),
        ("last answer", lambda block: block.answered, verdict.answered),
        ("CPU", lambda block: block.cpu, verdict.cpu),
    ]
    for name, seconds, lost in rows:
        off, on = (
            shape.block_tokens / statistics.median(seconds(block) for block in blocks)
            for blocks in ([pair.off for pair in pairs], [pair.on for pair in pairs])
        )
        quartiles = f"{lost.lower:+.1%} to {lost.upper:+.1%}"
        grid.add_row(name, f"{off:,.1f} tokens/s", f"{on:,.1f} tokens/s", f"{lost.median:+.1%}", quartiles)
    Console().print(grid)
