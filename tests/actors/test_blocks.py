"""What makes up a page on a rank: its groups of heads, and further rows per token that go where the full page goes."""

import time
from collections.abc import Sequence

import pytest
import torch
from shared_store import shared_store

from stratakv.actors.worker.groups import SINGLE, GroupOfRank, stored_groups
from stratakv.actors.worker.host import BlockSpec, HostMemory, bytes_of
from stratakv.actors.worker.lookup import StoreLookup
from stratakv.actors.worker.rank import Rank
from stratakv.actors.worker.split import HeadSplit
from stratakv.actors.worker.transfers import Transfers
from stratakv.cluster.agreement import LocalGroup, SlotTable, read
from stratakv.cluster.plan import Plan, Row
from stratakv.kernels.memory import DeviceMemory
from stratakv.kernels.pool import DevicePool
from stratakv.kernels.shapes import LayerShape, ModelShapes
from stratakv.storage.layout import BlockLayout, Group
from stratakv.storage.moves import Area, Copy, Direction, Order, PageStamp, Part, Read, Write
from stratakv.storage.stores.answers import Shelf
from stratakv.storage.stores.store import Store
from stratakv.storage.tiers import Component

PAGE, SLOTS, HEADS = 4, 6, 4
STAMPS = tuple(PageStamp(bytes([n + 1]) * 32, bytes([n]) * 32 if n else b"", n + 1, b"") for n in range(3))


class NoModel:
    def forward(self, rows: Sequence[Row], memory: DeviceMemory) -> torch.Tensor:
        raise AssertionError("nothing is computed here")


class OneRank:
    """A rank with `heads` KV heads of its own, that holds `held`; `indexer` gives it a further row per token."""

    def __init__(self, opens, heads: int, held: Sequence[GroupOfRank], indexer: bool = False):
        shapes = ModelShapes.plain([LayerShape(heads, 2, 3)] * 2)
        self.memory = DeviceMemory.build(shapes, full=SLOTS, page_size=PAGE, dtype=torch.float32)
        layers = [LayerShape(heads // held[0].share.of, 2, 3)] * 2
        specs = [
            BlockSpec(
                BlockLayout(layers, PAGE, 4, group=own.group), SLOTS, self.memory.full, own.share, own.writes
            )
            for own in held
        ]
        self.pools = [self.memory.full]
        if indexer:
            rows = [LayerShape(1, 5, 0)]
            self.pools.append(DevicePool(rows, SLOTS, PAGE, torch.float32))
            specs.append(BlockSpec(BlockLayout(rows, PAGE, 4, Component.INDEXER), SLOTS, self.pools[1]))
        self.host = HostMemory(bytearray(bytes_of([specs])), {Component.FULL: specs})
        self.store: Store = opens(self.host.layouts())
        self.table = SlotTable()
        self.transfers = Transfers(self.store, self.host, self.table, readers=1)
        identity = bytes.fromhex(self.store.identity.digest())
        self.rank = Rank(
            NoModel(), self.memory, self.host, LocalGroup(), identity, self.table, self.transfers
        )
        self.plans = 0

    def obey(self, *orders: Order) -> None:
        self.plans += 1
        self.rank.execute(Plan(self.plans, orders))

    def done(self, area: Area) -> int:
        until = time.monotonic() + 30
        while not (state := read(self.table.fill(1, 0), 1).slot(area, 0)).drained:
            assert time.monotonic() < until
            time.sleep(0.001)
        return state.done

    def fill(self, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [memory.copy_(torch.randn_like(memory)).clone() for memory in self.tensors()]

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for pool in self.pools for tensor in (*pool.keys, *pool.values)]

    def send_down(self) -> int:
        """Device pages 0, 1, 2 to host slots 3, 4, 5 and on to the store."""
        self.obey(Copy(1, Direction.BACKUP, Component.FULL, (0, 1, 2), (3, 4, 5), STAMPS))
        self.obey(Write(0, (Part(Component.FULL, (3, 4, 5), STAMPS),)))
        return self.done(Area.WRITE)

    def bring_up(self) -> int:
        """From the store to host slots 0, 1, 2 and on to device pages 3, 4, 5, as far as it goes."""
        self.obey(Read(0, (Part(Component.FULL, (0, 1, 2), STAMPS),)))
        landed = self.done(Area.PREFETCH)
        if landed:
            slots = tuple(range(landed))
            self.obey(Copy(1, Direction.LOAD, Component.FULL, tuple(3 + s for s in slots), slots))
        return landed


def shelves(*more: Shelf) -> dict[Component, list[Shelf]]:
    return {Component.FULL: [Shelf(Component.FULL, Group()), *more]}


def asked(store: Store, where: dict[Component, list[Shelf]]) -> list[bool]:
    answers: list = []
    lookup = StoreLookup(store, where)
    lookup.ask([stamp.key for stamp in STAMPS], {Component.FULL: 1}, answers.append)
    until = time.monotonic() + 30
    while not answers:
        assert time.monotonic() < until
        time.sleep(0.001)
    lookup.close()
    return answers[0][Component.FULL]


def test_a_further_row_per_token_goes_where_the_full_page_goes() -> None:
    opens = shared_store()
    one, other = (
        OneRank(opens, HEADS, SINGLE.held, indexer=True),
        OneRank(opens, HEADS, SINGLE.held, indexer=True),
    )
    before = one.fill(1)
    other.fill(2)
    assert one.send_down() == 3 and other.bring_up() == 3
    for mine, theirs in zip(before, other.tensors(), strict=True):
        assert torch.equal(mine[:3], theirs[3:])


def test_a_page_without_its_further_row_is_not_there() -> None:
    opens = shared_store()
    one, other = (
        OneRank(opens, HEADS, SINGLE.held, indexer=True),
        OneRank(opens, HEADS, SINGLE.held, indexer=True),
    )
    one.fill(1)
    assert one.send_down() == 3
    one.store.delete(Component.INDEXER, Group(), [STAMPS[2].key])
    indexer = Shelf(Component.INDEXER, Group())
    assert asked(one.store, shelves(indexer)) == [False, True, False], "nobody asked about the first"
    assert asked(one.store, shelves()) == [False, True, True]
    assert other.bring_up() == 2


def rank_of(opens, ranks: int, rank: int, setting: int | None) -> OneRank:
    groups = stored_groups(HeadSplit(HEADS, HEADS, ranks), rank, setting, latent=False)
    return OneRank(opens, HEADS // ranks, groups.held)


@pytest.mark.parametrize("groups", [2, 4])
def test_replicas_of_other_tensor_parallel_sizes_share_pages(groups: int) -> None:
    opens = shared_store(model=("4 heads",))
    whole = rank_of(opens, 1, 0, groups)
    halves = [rank_of(opens, 2, rank, groups) for rank in (0, 1)]
    before = whole.fill(1)
    assert whole.send_down() == 3
    assert [half.bring_up() for half in halves] == [3, 3]
    for number, tensor in enumerate(before):
        together = torch.cat([half.tensors()[number][3:] for half in halves], dim=2)
        assert torch.equal(tensor[:3], together)


def test_ranks_with_the_same_head_write_it_once() -> None:
    held = [stored_groups(HeadSplit(8, 2, 4), rank, None, latent=False) for rank in range(4)]
    assert [(h.count, str(h.held[0].group), h.held[0].writes) for h in held] == [
        (2, "g0of2", True), (2, "g0of2", False), (2, "g1of2", True), (2, "g1of2", False),
    ]  # fmt: skip


def test_latents_are_one_group_that_the_head_writes() -> None:
    held = [stored_groups(HeadSplit(8, 8, 2), rank, 4, latent=True) for rank in range(2)]
    assert [(h.count, h.held[0].writes) for h in held] == [(1, True), (1, False)]


def test_groups_that_cut_across_ranks_name_both_settings() -> None:
    with pytest.raises(ValueError, match=r"store.head_groups is 2 and tensor_parallel is 4"):
        stored_groups(HeadSplit(8, 8, 4), 0, 2, latent=False)
