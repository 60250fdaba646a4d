"""One rank of a replica: carries out plans on its own memory. It decides nothing; what it has finished it reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from stratakv.actors.worker.transfers import Transfers
from stratakv.cluster.agreement import Agreed, Group, SlotTable, read
from stratakv.cluster.plan import Plan, Row
from stratakv.kernels import kv_copy
from stratakv.kernels.memory import DeviceMemory
from stratakv.storage.header import BlockHeader
from stratakv.storage.moves import Area, Copy, Cut, Direction, Order, Read, Release, Write
from stratakv.storage.pools import HostBlocks


class Forward(Protocol):
    """What a rank asks of a model."""

    def forward(self, rows: Sequence[Row], memory: DeviceMemory) -> torch.Tensor:
        """Compute KV of all new tokens into `memory` and return logits, float32 [rows that sample, vocab]."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave: logits of the rows that sample (None when the plan had no rows), and what is agreed."""

    logits: torch.Tensor | None
    agreed: Agreed


class Rank:
    """The memory of one rank, and the model shard that computes into it.

    `host` is None when the host tier is off, `transfers` when there is no store; both share `table`, the rank's slots.
    """

    def __init__(
        self,
        model: Forward,
        memory: DeviceMemory,
        host: HostBlocks | None,
        group: Group,
        identity: bytes,
        table: SlotTable,
        transfers: Transfers | None = None,
    ):
        self._model = model
        self._memory = memory
        self._pool = memory.full
        self._host = host
        self._host_bytes = torch.from_numpy(host.array) if host is not None else None
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
            if isinstance(order, Copy):
                self._copy(order)
                self._copied_upto = order.number
        logits = self._model.forward(plan.rows, self._memory) if plan.rows else None
        return StepResult(logits, read(pending.wait(), plan.number))

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

    def _copy(self, copy: Copy) -> None:
        if self._host is None or self._host_bytes is None:
            raise RuntimeError(f"copy {copy.number} was ordered, but this rank has no host tier")
        offset = self._host.layout.payload_offset
        if copy.direction is Direction.LOAD:
            kv_copy.load(self._pool, self._host_bytes, offset, copy.device_slots, copy.host_slots)
            return
        # A header is cleared before its payload changes and written last: a block whose header is sound is whole.
        for slot in copy.host_slots:
            self._host.clear(slot)
        kv_copy.backup(self._pool, self._host_bytes, offset, copy.device_slots, copy.host_slots)
        for slot, stamp in zip(copy.host_slots, copy.stamps, strict=True):
            self._host.seal(slot, BlockHeader.of(stamp, self._host.layout, self._identity, checksum=None))
