"""A model without weights that notices every wrong byte: its logits are a digest of all KV it reads from the pool."""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from stratakv.actors.settings import SchedulerSettings
from stratakv.actors.worker.endpoint import Emission
from stratakv.actors.worker.engine import Engine
from stratakv.actors.worker.head import Head
from stratakv.actors.worker.lookup import StoreLookup
from stratakv.actors.worker.rank import Forward, Rank
from stratakv.actors.worker.seeker import StoreSeeker
from stratakv.actors.worker.transfers import Transfers
from stratakv.cluster.agreement import LocalGroup, SlotTable
from stratakv.cluster.messages import Delta, Generate, Sampling, pack_tokens
from stratakv.cluster.plan import Row
from stratakv.kernels.memory import DeviceMemory
from stratakv.kernels.shapes import LayerShape, ModelShapes
from stratakv.storage.keys import chain, namespace_seed
from stratakv.storage.layout import BlockLayout
from stratakv.storage.policies.prefetch import WaitComplete
from stratakv.storage.pools import HostBlocks
from stratakv.storage.residence import Changes, Holdings
from stratakv.storage.settings import CacheSettings
from stratakv.storage.stores.settings import StoreSettings
from stratakv.storage.stores.store import Store

VOCAB = 101
SHAPES = ModelShapes.plain([LayerShape(1, 2, 2), LayerShape(1, 2, 2)])


class DigestModel:
    """KV of a token is (token, position) in every layer; the next token is a digest of the whole history as read."""

    def __init__(self) -> None:
        self.tokens_computed = 0
        self.fail_on_step: int | None = None
        self.steps = 0
        self.poison: int | None = None
        """A token after which the logits are no numbers."""

    def forward(self, rows: Sequence[Row], memory: DeviceMemory) -> torch.Tensor:
        pool = memory.full
        self.steps += 1
        if self.steps == self.fail_on_step:
            raise RuntimeError("the model broke")
        logits = []
        for row in rows:
            self.tokens_computed += len(row.tokens)
            read = torch.tensor(
                [page * pool.page_size + i for page in row.pages for i in range(pool.page_size)]
            )
            here = read[row.start : row.start + len(row.tokens)]
            values = torch.tensor([[t, row.start + i] for i, t in enumerate(row.tokens)], dtype=pool.dtype)
            for keys in (*pool.key_rows, *pool.value_rows):
                keys[here, 0] = values
            if row.sample:
                context = read[: row.start + len(row.tokens)]
                seen = torch.stack([m[context, 0] for m in (*pool.key_rows, *pool.value_rows)])
                digest = hashlib.sha256(seen.numpy().tobytes()).digest()
                drawn = np.random.default_rng(list(digest)).normal(size=VOCAB)
                logits.append(np.full(VOCAB, np.nan) if self.poison in row.tokens else drawn)
        return torch.tensor(np.array(logits), dtype=torch.float32)


def expected_output(prompt: list[int], count: int) -> list[int]:
    """What DigestModel says greedily after `prompt`, worked out without pools or caches."""
    tokens = list(prompt)
    for _ in range(count):
        pairs = np.array([[t, i] for i, t in enumerate(tokens)], dtype=np.float32)
        digest = hashlib.sha256(np.stack([pairs] * 4).tobytes()).digest()
        tokens.append(int(np.random.default_rng(list(digest)).normal(size=VOCAB).astype(np.float32).argmax()))
    return tokens[len(prompt) :]


class EngineClient:
    """An engine over `model`, and what its clients have been told."""

    def __init__(
        self,
        model: Forward,
        shapes: ModelShapes,
        *,
        page_size: int = 4,
        device: int = 64,
        host: int = 64,
        limit: int = 10_000,
        store: Callable[[BlockLayout], Store] | None = None,
        **scheduler: int,
    ) -> None:
        self.told: dict[str, list[Delta]] = {}
        self.sizes: list[int] = []
        self.held_keys: set[bytes] = set()
        self.snapshots: list[Holdings] = []
        layout = BlockLayout(shapes.full, page_size, itemsize=4)
        blocks = HostBlocks(bytearray(host * layout.block_bytes), host, layout) if host else None
        memory = DeviceMemory.build(shapes, full=device, page_size=page_size, dtype=torch.float32)
        self.pool = memory.full
        settings = SchedulerSettings(**{"token_budget": 16, "max_running": 16, **scheduler})
        cache = CacheSettings(page_size=page_size)
        self.page_size = page_size
        table, transfers, seeker_of, identity = SlotTable(), None, None, bytes(32)
        self.engine = Engine(page_size)
        if store is not None and blocks is not None:
            opened = store(layout)
            identity = bytes.fromhex(opened.identity.digest())
            transfers, lookup = Transfers(opened, blocks, table, readers=2), StoreLookup(opened)
            asks = StoreSettings(prefetch_threshold=1)
            seeker_of = lambda hierarchy: StoreSeeker(  # noqa: E731
                asks, WaitComplete(), hierarchy, lookup, page_size, self.engine.found, time.monotonic
            )
        self.head = Head(
            cache, settings, device_slots=device, host_slots=host, eos=(), limit=limit, seeker_of=seeker_of
        )
        rank = Rank(model, memory, blocks, LocalGroup(), identity, table, transfers)
        self.engine.connect(self.head, rank, self)

    def deliver_events(self, changes: Changes) -> None:
        for key in changes.held_added:
            assert key not in self.held_keys
        self.held_keys = (self.held_keys | set(changes.held_added)) - set(changes.held_removed)

    def deliver_snapshot(self, client: bytes, holdings: Holdings) -> None:
        self.snapshots.append(holdings)

    def deliver(self, step: int, emissions: Sequence[Emission]) -> None:
        self.sizes.append(len(emissions))
        for emission in emissions:
            self.told.setdefault(emission.delta.id, []).append(emission.delta)

    def send(self, id: str, prompt: list[int], max_tokens: int = 4, salt: str | None = None) -> None:
        sampling = Sampling(max_tokens=max_tokens, temperature=0.0)
        request = Generate(id=id, tokens=pack_tokens(prompt), sampling=sampling, cache_salt=salt)
        keys = chain(prompt, self.page_size, after=namespace_seed(None, salt))
        self.engine.submit(b"gateway", request, keys)

    def work(self) -> None:
        """Run steps in this thread until there is nothing left to do, nor to wait for."""
        until = time.monotonic() + 60
        while self.engine._work() or self.head.scheduler.waiting:
            assert time.monotonic() < until, "requests are stuck"
            time.sleep(0.001)

    def output(self, id: str) -> list[int]:
        return [token for delta in self.told[id] for token in delta.tokens]


class Client(EngineClient):
    """An engine over a DigestModel: every answer can be checked."""

    def __init__(self, **options: Any) -> None:
        self.model = DigestModel()
        super().__init__(self.model, SHAPES, **options)

    def ask(self, id: str, prompt: list[int], max_tokens: int = 4, salt: str | None = None) -> Delta:
        """One request, alone, to its end. Checks its tokens; returns its last delta."""
        self.send(id, prompt, max_tokens, salt)
        self.work()
        assert self.output(id) == expected_output(prompt, max_tokens)
        return self.told[id][-1]
