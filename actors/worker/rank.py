"""One rank of a replica: carries out plans on its own memory. It decides nothing; what it has finished it reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch

from stratakv.actors.worker.host import Blocks, HostMemory
from stratakv.actors.worker.transfers import Transfers
from stratakv.cluster.agreement import Agreed, Group, SlotTable, read
from stratakv.cluster.plan import Plan, Row
from stratakv.kernels import kv_copy
from stratakv.kernels.checkpoints import load_state
from stratakv.kernels.memory import DeviceMemory
from stratakv.storage.header import BlockHeader
from stratakv.storage.moves import (
    Area,
    Copy,
    Cut,
    Direction,
    Order,
    Read,
    Release,
    Restore,
    Snapshot,
    Write,
)
from stratakv.storage.tiers import Component


class Forward(Protocol):
    """What a rank asks of a model."""

    def forward(self, rows: Sequence[Row], memory: DeviceMemory) -> torch.Tensor:
        """Compute KV of all new tokens into `memory` and return logits, float32 [rows that sample, vocab]."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave: logits of the rows that sample (None when the plan had no rows), what is agreed, and the
    seconds that the forward took."""

    logits: torch.Tensor | None
    agreed: Agreed
    seconds: float = 0.0


class Rank:
    """The memory of one rank, and the model shard that computes into it.

    `host` is None when the host tier is off, `transfers` when there is no store; both share `table`, the rank's slots.
    """

    def __init__(
        self,
        model: Forward,
        memory: DeviceMemory,
        host: HostMemory | None,
        group: Group,
        identity: bytes,
        table: SlotTable,
        transfers: Transfers | None = None,
    ):
        self._model = model
        self._memory = memory
        self._host = host
        self._group = group
        self._identity = identity
        self._table = table
        self._transfers = transfers
        self._copied_upto = 0

    def execute(self, plan: Plan) -> StepResult:
        """Carry out `plan`. The vector tells what had finished before it, so agreement lags one step and costs no
        wait."""
        for order in plan.orders:
            self._apply(order)
        pending = self._group.all_reduce_min(self._table.fill(plan.number, self._copied_upto))
        for order in plan.orders:
            self._move(order)
        began = perf_counter()
        logits = self._model.forward(plan.rows, self._memory) if plan.rows else None
        seconds = perf_counter() - began
        return StepResult(logits, read(pending.wait(), plan.number), seconds)

    def _apply(self, order: Order) -> None:
        """Bring the slot table to what the plan says, and set transfers going; copies come later."""
        match order:
            case Release(area=area, slot=slot):
                self._table.release(area, slot)
            case Cut(slot=slot):
                self._table.cut(Area.PREFETCH, slot)
            case Read():
                self._store().read(order)
            case Write():
                self._store().write(order)

    def _store(self) -> Transfers:
        if self._transfers is None:
            raise RuntimeError("a transfer was ordered, but this rank has no store")
        return self._transfers

    def _move(self, order: Order) -> None:
        """Carry out what moves bytes on this rank, in the order of the plan."""
        match order:
            case Copy():
                self._copy(order)
                self._copied_upto = order.number
            case Snapshot(state=state, places=places):
                assert self._memory.checkpoints is not None and self._memory.states is not None
                self._memory.checkpoints.save(self._memory.states, state, places)
            case Restore(places=places, state=state):
                assert self._memory.checkpoints is not None and self._memory.states is not None
                self._memory.checkpoints.restore(self._memory.states, state, places)

    def _copy(self, copy: Copy) -> None:
        if self._host is None:
            raise RuntimeError(f"copy {copy.number} was ordered, but this rank has no host tier")
        for blocks in self._host.of(copy.component):
            if copy.direction is Direction.LOAD:
                self._load(copy, blocks)
                continue
            # A header is cleared before its payload changes and written last: a block with a sound header is whole.
            for slot in copy.host_slots:
                blocks.host.clear(slot)
            self._back_up(copy, blocks)
            for slot, stamp in zip(copy.host_slots, copy.stamps, strict=True):
                blocks.host.seal(slot, BlockHeader.of(stamp, blocks.layout, self._identity, checksum=None))

    def _load(self, copy: Copy, blocks: Blocks) -> None:
        if copy.component is Component.RECURRENT:
            assert self._memory.states is not None
            for state, slot in zip(copy.device_slots, copy.host_slots, strict=True):
                load_state(self._memory.states, blocks.tensor, blocks.offset, slot, state)
            return
        assert blocks.pool is not None
        kv_copy.load(
            blocks.pool, blocks.tensor, blocks.offset, copy.device_slots, copy.host_slots, blocks.share
        )

    def _back_up(self, copy: Copy, blocks: Blocks) -> None:
        if copy.component is Component.RECURRENT:
            assert self._memory.checkpoints is not None
            each = len(copy.device_slots) // len(copy.host_slots)
            for number, slot in enumerate(copy.host_slots):
                places = copy.device_slots[number * each : (number + 1) * each]
                self._memory.checkpoints.backup(blocks.tensor, blocks.offset, places, slot)
            return
        assert blocks.pool is not None
        kv_copy.backup(
            blocks.pool, blocks.tensor, blocks.offset, copy.device_slots, copy.host_slots, blocks.share
        )
