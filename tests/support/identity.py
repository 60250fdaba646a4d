"""One cell of the identity matrix: a history comes back from the tier that the cell names, in a batch and with policies
as the cell says, and what the model says is compared with what it says uncached."""

import random
from typing import Any

from engine_fakes import EngineClient
from shared_store import shared_store
from tiny_families import RECURRENT as RECURRENT_FAMILIES
from uncached import Uncached

from stratakv.actors.worker.model import Model
from stratakv.storage.hierarchy_check import idle_problems

HISTORY = 150
"""Tokens of the history that comes back. The longest output, the others and the pools are cut to suit it."""
OUTPUT = 10


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)


class Recording(EngineClient):
    """Keeps the logits that each request's tokens were drawn from."""

    def __init__(self, model: Model, **options: Any):
        super().__init__(model, model.shapes, limit=512, **options)
        self.logits: dict[str, list] = {}
        sample = self.head._sample

        def recorded(requests, logits):
            for request, row in zip(requests, logits if logits is not None else (), strict=True):
                self.logits.setdefault(request.id.id, []).append(row.clone())
            return sample(requests, logits)

        self.head._sample = recorded

    def ask(self, id: str, tokens: list[int], count: int = OUTPUT):
        self.send(id, tokens, count)
        self.work()
        return self.told[id][-1].usage


def run_cell(model: Model, cell: dict[str, object], uncached: Uncached) -> str:
    """Run `cell` and check every answer and all logits. Returns what the history was served from, for the record."""
    page, mode, source = int(cell["page"]), cell["mode"], cell["source"]  # type: ignore[call-overload]
    retracts = mode == "retracted"
    options: dict[str, Any] = {
        "page_size": page,
        "device": device_pages(model, cell),
        "host": 4096 // page,
        "token_budget": 23 if mode == "chunked" else 48 if mode == "mixed" else 512,
        "max_running": 6,
        "cache": {"write_policy": cell["write"], "unified": cell["memory"] == "unified"},
        "prefetch_policy": cell["prefetch"],
        "store": shared_store(),
    }
    first = Recording(model, **options)
    history = prompt(1, HISTORY)
    said = [(first, "first", history)]
    first.ask("first", history)
    if source != "device" or retracts:
        first.ask("again", history)
        said.append((first, "again", history))
        flood(first, said)
    client = Recording(model, **options) if source == "store" else first
    client.send("back", history, OUTPUT)
    others = {"mixed": (70, 90, 40), "retracted": (50, 60, 40)}.get(str(mode), ())
    for number, length in enumerate(others):
        id = f"other {number}"
        client.send(id, prompt(50 + number, length), 60 if retracts else OUTPUT + number)
        said.append((client, id, prompt(50 + number, length)))
    client.work()
    said.append((client, "back", history))
    for asked, id, tokens in said:
        uncached.check(tokens, asked.output(id))
        uncached.check_logits(tokens, asked.output(id), asked.logits[id])
    for one in {first, client}:
        assert idle_problems(one.head.hierarchy) == []
    assert not retracts or client.head.scheduler.retractions > 0, "nobody had to give up its place"
    return served(client, cell)


def device_pages(model: Model, cell: dict[str, object]) -> int:
    """Page slots of the device: few where the history is to leave it, fewest where requests are to leave it in
    mid-answer. Where checkpoints share the buffer, there is room for two of them."""
    page = int(cell["page"])  # type: ignore[call-overload]
    small = -(-(HISTORY + 3 * OUTPUT + 60) // page) + 4
    pages = small if cell["source"] == "host" else 2048 // page
    if cell["mode"] == "retracted":
        pages = -(-(HISTORY + 60) // page) + 1
    if cell["memory"] == "fixed":
        return pages
    page_bytes = sum(shape.elements_per_token() for shape in model.shapes.full) * page * 4
    return pages + 2 * -(-model.shapes.states_bytes() // page_bytes)


def flood(client: Recording, said: list) -> None:
    """Other prompts push the history off a small device and down, one at a time."""
    for seed in (2, 3, 4):
        client.ask(f"flood {seed}", prompt(seed, HISTORY))
        said.append((client, f"flood {seed}", prompt(seed, HISTORY)))


def served(client: Recording, cell: dict[str, object]) -> str:
    """What "back" was served from. It must be the cell's tier, or the reason must be one that the cell explains."""
    usage = client.told["back"][-1].usage
    parts = {"device": usage.device, "host": usage.host, "store": usage.store}
    source = str(cell["source"])
    if source == "store" and cell["prefetch"] in ("best_effort", "break_even") and not usage.store:
        assert usage.misses.get("cut by policy"), usage
        return "computed (cut by policy)"
    if cell["mode"] == "retracted" and source == "device":
        assert usage.device + usage.host > 0, usage
        return "device or host"
    assert parts[source] > 0, f"{cell}: {usage}"
    if cell["family"] in RECURRENT_FAMILIES:
        assert parts[source] % int(cell["page"]) == 0  # type: ignore[call-overload]
    return source
