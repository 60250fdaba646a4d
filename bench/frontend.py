"""What gateway and router cost: time to first token over the head alone, and tokens/s through the gateway.

    python bench/frontend.py --model DIRECTORY [--json FILE] [--requests 200]

A real cluster of two replicas is started whose workers have no model: they echo the prompt, one token a
millisecond. The same kind of worker runs in this process behind the same ZeroMQ link, and is asked directly.
Client, gateway, router and workers share this machine, so the figures are upper bounds of what a request pays.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import msgspec
import zmq.asyncio
from rich.console import Console
from rich.table import Table

from stratakv.actors.gateway.link import HeadLink
from stratakv.actors.settings import ModelSettings
from stratakv.actors.worker.config import WorkerConfig
from stratakv.actors.worker.echo import QuickEchoWorker
from stratakv.cluster.curve import new_key_pair
from stratakv.cluster.messages import Generate, Sampling, pack_tokens
from stratakv.cluster.rendezvous import Nobody
from stratakv.deploy.records import ClusterRecord

STRATAKV = str(Path(sys.executable).with_name("stratakv"))
PROMPT = 512
STREAMS = (1, 16, 64)
TOKENS = 128


@dataclass
class Latency:
    """Milliseconds to the first token."""

    path: str
    median_ms: float
    p99_ms: float

    @classmethod
    def of(cls, path: str, seconds: list[float]) -> "Latency":
        cuts = statistics.quantiles([1e3 * s for s in seconds], n=100)
        return cls(path, statistics.median(1e3 * s for s in seconds), cuts[98])


@dataclass
class Throughput:
    streams: int
    tokens_per_second: float


def prompt(number: int) -> list[int]:
    return [(7 * number + i) % 250 for i in range(PROMPT)]


async def ask_head(link: HeadLink, number: int) -> float:
    """Seconds to the first token of one request over the link alone."""
    request = Generate(id=f"r{number}", tokens=pack_tokens(prompt(number)), sampling=Sampling(max_tokens=2))
    began = time.perf_counter()
    async with aclosing(link.generate(request)) as deltas:
        async for _ in deltas:
            return time.perf_counter() - began
    raise RuntimeError("no token came")


async def ask_gateway(
    session: aiohttp.ClientSession, url: str, number: int, tokens: int
) -> tuple[float, int]:
    """Seconds to the first token of one streamed completion, and how many chunks came."""
    body = {
        "model": "bench",
        "prompt": prompt(number),
        "max_tokens": tokens,
        "stream": True,
        "ignore_eos": True,
    }
    began, first, chunks = time.perf_counter(), 0.0, 0
    async with session.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                first = first or time.perf_counter() - began
                chunks += 1
    return first, chunks


async def latency_of_head(model: Path, requests: int) -> Latency:
    keys = new_key_pair()
    config = WorkerConfig(
        cluster_id="bench",
        replica=0,
        rank=0,
        generation=1,
        gateway_key=keys.public,
        model=ModelSettings(path=str(model)),
    )
    worker = QuickEchoWorker(config)
    link = HeadLink(worker.start(Nobody()), keys, config.wire, config.heartbeat, zmq.asyncio.Context())
    link.start()
    try:
        await ask_head(link, 0)
        return Latency.of("head alone", [await ask_head(link, n) for n in range(1, requests + 1)])
    finally:
        await link.close()
        worker.stop()


async def through_gateway(url: str, requests: int) -> tuple[Latency, list[Throughput]]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        await ask_gateway(session, url, 0, 2)
        first = [(await ask_gateway(session, url, n, 2))[0] for n in range(1, requests + 1)]
        throughputs = []
        for streams in STREAMS:
            began = time.perf_counter()
            done = await asyncio.gather(*(ask_gateway(session, url, n, TOKENS) for n in range(streams)))
            seconds = time.perf_counter() - began
            # Every step is one chunk, and a step of an echo is one token.
            throughputs.append(Throughput(streams, sum(chunks for _, chunks in done) / seconds))
    return Latency.of("gateway and router", first), throughputs


def cluster(model: Path, folder: Path) -> tuple[ClusterRecord, dict[str, str]]:
    """A running cluster of echo workers, and the environment to take it down in."""
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(folder),
        "STRATAKV_SUPERVISOR__WORKER_CLASS": "stratakv.actors.worker.echo:QuickEchoWorker",
        "STRATAKV_MODEL__SERVED_NAME": "bench",
    }
    command = [
        STRATAKV,
        "serve",
        "--detach",
        "--model",
        str(model),
        "--replicas",
        "2",
        "--port",
        "0",
        "--store",
        "none",
    ]
    subprocess.run(command, env=environment, check=True, timeout=300)
    (path,) = (folder / "stratakv" / "clusters").glob("*.json")
    return msgspec.json.decode(path.read_bytes(), type=ClusterRecord), environment


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="Hugging Face directory, for tokenizer and sizes"
    )
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--requests", type=int, default=200, help="requests per latency")
    arguments = parser.parse_args()
    model = arguments.model.absolute()
    with tempfile.TemporaryDirectory() as folder:
        record, environment = cluster(model, Path(folder))
        try:
            assert record.url is not None
            head = asyncio.run(latency_of_head(model, arguments.requests))
            gateway, throughputs = asyncio.run(through_gateway(record.url, arguments.requests))
        finally:
            subprocess.run(
                [STRATAKV, "down", record.id, "--drain", "0"], env=environment, check=True, timeout=120
            )
    table = Table(title=f"Time to first token, prompt of {PROMPT} tokens")
    for name in ("path", "median ms", "p99 ms"):
        table.add_column(name)
    for row in (head, gateway):
        table.add_row(row.path, f"{row.median_ms:.2f}", f"{row.p99_ms:.2f}")
    table.add_row("added", f"{gateway.median_ms - head.median_ms:.2f}", f"{gateway.p99_ms - head.p99_ms:.2f}")
    rates = Table(title="Tokens/s through the gateway")
    for name in ("streams", "tokens/s"):
        rates.add_column(name)
    for rate in throughputs:
        rates.add_row(str(rate.streams), f"{rate.tokens_per_second:.0f}")
    Console().print(table, rates)
    if arguments.json:
        result = {
            "latency": [asdict(head), asdict(gateway)],
            "throughput": [asdict(rate) for rate in throughputs],
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
