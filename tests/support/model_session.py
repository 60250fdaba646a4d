"""Requests over a model's memory, without a head: pages, windows and states handed out as a head would."""

import torch
from transformers import AutoModelForCausalLM

from stratakv.actors.worker.model import Model
from stratakv.cluster.plan import Row
from stratakv.kernels import kv_copy
from stratakv.kernels.checkpoints import load_state
from stratakv.kernels.memory import DeviceMemory
from stratakv.kernels.pool import DevicePool, bytes_per_page
from stratakv.kernels.work import first_seen

PAGE = 8
STATES = 8


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def plain_model(path):
    """The model as transformers runs it."""
    return AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)


def plain_logits(plain, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocab] in one piece, without a cache."""
    positions = torch.arange(len(tokens))[None]
    with torch.inference_mode():
        return (
            plain(input_ids=torch.tensor([tokens]), position_ids=positions, use_cache=False).logits[0].float()
        )


class Session:
    """Runs requests over one memory, whose slots are handed out in a scrambled order and hold rubbish at first."""

    def __init__(self, model: Model, slots: int = 96, unified: bool = False):
        self.model, self.unified = model, unified
        shapes = model.shapes
        self.memory = DeviceMemory.build(
            shapes, full=slots, sliding=slots if shapes.sliding else 0, states=STATES if shapes.states else 0,
            checkpoints=STATES if shapes.states and not unified else 0, page_size=PAGE, dtype=model.dtype,
            unified=unified,
        )  # fmt: skip
        pools = [self.memory.full] + ([self.memory.sliding] if self.memory.sliding else [])
        for pool in pools:
            for tensor in (*pool.keys, *pool.values):
                tensor.fill_(float("nan"))
        for tensor in self.memory.states.tensors if self.memory.states else ():
            tensor.fill_(float("nan"))
        order = torch.randperm(slots, generator=torch.Generator().manual_seed(1)).tolist()
        self.free = {"full": order, "sliding": order[::-1], "states": list(range(STATES))}
        self.pages: dict[str, list[int]] = {}
        self.windows: dict[str, dict[int, int]] = {}
        self.states: dict[str, int] = {}

    def row(self, name: str, tokens: list[int], start: int, end: int, sample: bool = True) -> Row:
        pages = self.pages.setdefault(name, [])
        while len(pages) * PAGE < end:
            pages.append(self.free["full"].pop())
        count = -(-end // PAGE)
        window, state = (), -1
        if self.memory.sliding:
            held = self.windows.setdefault(name, {})
            first = first_seen(start, self.model.shapes.window) // PAGE
            self.free["sliding"] += [held.pop(page) for page in list(held) if page < first]
            for page in range(first, count):
                if page not in held:
                    held[page] = self.free["sliding"].pop()
            window = tuple(held[page] for page in range(first, count))
        if self.memory.states:
            if name not in self.states:
                self.states[name] = self.free["states"].pop()
            state = self.states[name]
        return Row(tuple(tokens[start:end]), start, tuple(pages[:count]), sample, window, state)

    def step(self, rows: list[Row]) -> torch.Tensor:
        """Logits of the rows that sample."""
        return self.model.forward(rows, self.memory)

    def checkpoint(self, name: str) -> tuple[int, ...]:
        """Save the state of `name` on the device; where it lies."""
        kept = self.memory.checkpoints
        if self.unified:
            places = tuple(self.free["full"].pop() for _ in range(kept.pages_per_checkpoint))
        else:
            places = (self.states[name],)
        kept.save(self.memory.states, self.states[name], places)
        return places

    def through_host(self, name: str, cached: int) -> None:
        """Send all of `name`, which has `cached` tokens at a page boundary, through host blocks to other slots."""
        assert cached % PAGE == 0
        self.pages[name] = self._move(self.memory.full, self.pages[name][: cached // PAGE], self.free["full"])
        if self.memory.sliding:
            held = self.windows[name]
            first = first_seen(cached, self.model.shapes.window) // PAGE
            kept = [page for page in sorted(held) if first <= page < cached // PAGE]
            moved = self._move(self.memory.sliding, [held[page] for page in kept], self.free["sliding"])
            self.windows[name] = dict(zip(kept, moved, strict=True))
        if self.memory.states:
            places, old = self.checkpoint(name), self.states[name]
            host = torch.zeros(3, 64 + self.memory.states.bytes_per_slot, dtype=torch.uint8)
            self.memory.checkpoints.backup(host, 64, places, 1)
            self.states[name] = self.free["states"].pop(0)
            for tensor in self.memory.states.tensors:
                tensor[old] = float("nan")
            load_state(self.memory.states, host, 64, 1, self.states[name])

    def _move(self, pool: DevicePool, slots: list[int], free: list[int]) -> list[int]:
        """Pages through host blocks to other slots; where they were is rubbish afterwards."""
        size = 64 + bytes_per_page(pool.shapes, pool.page_size, pool.dtype)
        host = torch.zeros(len(slots) + 1, size + -size % 64, dtype=torch.uint8)
        blocks = list(range(len(slots), 0, -1))
        kv_copy.backup(pool, host, 64, slots, blocks)
        for tensor in (*pool.keys, *pool.values):
            tensor[slots] = float("nan")
        moved = [free.pop(0) for _ in slots]
        kv_copy.load(pool, host, 64, moved, blocks)
        return moved

    def greedy(
        self, name: str, tokens: list[int], count: int, cuts: tuple[int, ...] = (), start: int = 0
    ) -> list[int]:
        tokens = list(tokens)
        for cut in (*cuts, len(tokens)):
            drawn = self.step([self.row(name, tokens, start, cut)]).argmax(-1).tolist()
            start = cut
        for _ in range(count - 1):
            tokens += drawn
            drawn = self.step([self.row(name, tokens, len(tokens) - 1, len(tokens))]).argmax(-1).tolist()
        return (tokens + drawn)[-count:]
