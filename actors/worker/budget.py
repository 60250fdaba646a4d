"""How much of a rank's memory each kind of state gets: made once, when the model is loaded and its shapes are known."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from stratakv.actors.worker.groups import GroupOfRank
from stratakv.actors.worker.host import BlockSpec
from stratakv.cluster.messages import ComponentRule
from stratakv.kernels.memory import DeviceMemory
from stratakv.kernels.shapes import LayerShape, ModelShapes
from stratakv.storage.layout import (
    BlockLayout,
    DeviceMemoryTooSmall,
    Group,
    HostMemoryTooSmall,
    MemoryTooSmall,
    device_slots_for,
    host_slots_for,
)
from stratakv.storage.pools import SlotPool
from stratakv.storage.restore import EXACT, trailing
from stratakv.storage.settings import CacheSettings, format_size
from stratakv.storage.side_setup import CheckpointPools, SidePools, WindowPools
from stratakv.storage.stores.answers import Shelf
from stratakv.storage.tiers import Component


class SettingsError(ValueError):
    """Settings of the cache do not suit the model. Names them and the remedy."""


@dataclass(frozen=True)
class TierSlots:
    """Slots of each component in one tier."""

    full: int
    sliding: int = 0
    recurrent: int = 0


@dataclass(frozen=True)
class Budget:
    """The slots of a rank. `layouts` has, by component, a block layout for each group that the rank holds, `page_bytes`
    what a full page takes on the device, `states` the working slots, and `pages_each` the page slots of a checkpoint in
    a unified buffer (0 without one). `chunk_pages` is the most pages that one step of a request touches."""

    device: TierSlots
    host: TierSlots
    states: int
    pages_each: int
    chunk_pages: int
    page_bytes: int
    layouts: dict[Component, tuple[BlockLayout, ...]]
    window: int | None
    cache: CacheSettings

    def with_slots(self, agreed: Callable[..., list[int]]) -> "Budget":
        """This budget with the slots that all ranks have; `agreed` gives the MIN of each of its numbers over them."""
        device, host = self.device, self.host
        numbers = agreed(
            device.full, device.sliding, device.recurrent, host.full, host.sliding, host.recurrent
        )
        return replace(self, device=TierSlots(*numbers[:3]), host=TierSlots(*numbers[3:]))

    def device_memory(self, shapes: ModelShapes, dtype: torch.dtype, device: torch.device) -> DeviceMemory:
        """Take the memory of the device."""
        return DeviceMemory.build(
            shapes, full=self.device.full, sliding=self.device.sliding, states=self.states,
            checkpoints=self.device.recurrent, page_size=self.cache.page_size, dtype=dtype, device=device,
            unified=self.pages_each > 0,
        )  # fmt: skip

    def __str__(self) -> str:
        """For people: what there is of each component, in both tiers."""
        parts = [
            f"{self.device.full} device pages ({format_size(self.device.full * self.page_bytes)}) and "
            f"{self.host.full} host pages of {self.cache.page_size} tokens"
        ]
        if self.window is not None:
            parts.append(f"{self.device.sliding} and {self.host.sliding} pages of sliding windows")
        if self.states:
            own = "sharing the pages' buffer" if self.pages_each else str(self.device.recurrent)
            parts.append(f"{self.states} working states, {own} and {self.host.recurrent} checkpoints")
        return "; ".join(parts)

    def side_pools(self) -> SidePools | None:
        """Fresh pools for the sides of the model; None when it has none."""
        page_size = self.cache.page_size
        windows = checkpoints = None
        if self.window is not None:
            policy = trailing(self.window, page_size)
            pools = (
                SlotPool("sliding device", self.device.sliding),
                SlotPool("sliding host", self.host.sliding),
            )
            windows = WindowPools(policy, *pools, self.chunk_pages)
        if self.states:
            own = None if self.pages_each else SlotPool("checkpoints on the device", self.device.recurrent)
            host = SlotPool("checkpoints on host", self.host.recurrent)
            checkpoints = CheckpointPools(SlotPool("states", self.states), own, host, self.pages_each)
        if windows is None and checkpoints is None:
            return None
        return SidePools(windows, checkpoints, self.cache.checkpoint_pages)

    def rules(self) -> tuple[ComponentRule, ...]:
        """What a prefix needs beside its full pages, for routers."""
        rules = []
        if self.window is not None:
            policy = trailing(self.window, self.cache.page_size)
            rules.append(ComponentRule(Component.SLIDING, policy.rule, policy.pages))
        if self.states:
            rules.append(ComponentRule(Component.RECURRENT, EXACT.rule, EXACT.pages))
        return tuple(rules)


def make_budget(
    cache: CacheSettings,
    shapes: ModelShapes,
    itemsize: int,
    held: Sequence[GroupOfRank],
    max_running: int,
    chunk: int,
) -> Budget:
    """Share out the memory that `cache` gives a rank which holds the groups `held` of a model of `shapes`.

    `itemsize` is bytes of an element of KV, `max_running` and `chunk` the requests and tokens of one step at most.
    Raises MemoryTooSmall or SettingsError.
    """
    _check(cache, shapes)
    layouts = _layouts(cache.page_size, shapes, itemsize, held)
    chunk_pages = -(-chunk // cache.page_size) + 1
    page = BlockLayout(shapes.full, cache.page_size, itemsize)
    page_bytes = page.payload_bytes
    state_bytes, states = shapes.states_bytes(), max_running if shapes.states else 0
    working = states * state_bytes
    if working >= cache.device_memory:
        raise DeviceMemoryTooSmall(
            f"cache.device_memory is {format_size(cache.device_memory)}, and the states of scheduler.max_running "
            f"({max_running}) requests alone take {format_size(working)}; raise it or lower scheduler.max_running"
        )
    memory = cache.device_memory - working
    sliding_share = cache.sliding_share if shapes.sliding else 0.0
    recurrent_share = cache.recurrent_share if shapes.states else 0.0
    apart = 0.0 if cache.unified else recurrent_share
    device = TierSlots(
        full=device_slots_for(int(memory * (1 - sliding_share - apart)), page, max_running + 1),
        sliding=_window_slots(int(memory * sliding_share), cache, shapes, itemsize, chunk_pages),
        recurrent=_checkpoint_slots(int(memory * apart), state_bytes, DeviceMemoryTooSmall) if apart else 0,
    )
    host = TierSlots(
        full=_host_slots(
            int(cache.host_memory * (1 - sliding_share - recurrent_share)), layouts[Component.FULL]
        ),
        sliding=_side_slots(int(cache.host_memory * sliding_share), layouts.get(Component.SLIDING, ())),
        recurrent=_side_slots(int(cache.host_memory * recurrent_share), layouts.get(Component.RECURRENT, ())),
    )
    if host.full and ((shapes.sliding and not host.sliding) or (shapes.states and not host.recurrent)):
        raise HostMemoryTooSmall(
            f"cache.host_memory is {format_size(cache.host_memory)}: the shares of cache.sliding_share and "
            "cache.recurrent_share do not hold one page or checkpoint; raise it, or the shares"
        )
    return Budget(
        device, host, states, -(-state_bytes // page_bytes) if cache.unified else 0, chunk_pages, page_bytes,
        layouts, shapes.window, cache,
    )  # fmt: skip


def _check(cache: CacheSettings, shapes: ModelShapes) -> None:
    if cache.unified and not shapes.states:
        raise SettingsError(
            "cache.unified is true, and the model that model.path names keeps no recurrent state that could share a "
            "buffer with its pages; leave cache.unified at false"
        )
    shares = {"cache.sliding_share": cache.sliding_share, "cache.recurrent_share": cache.recurrent_share}
    if shapes.sliding and shapes.states and sum(shares.values()) >= 1:
        raise SettingsError(
            " and ".join(f"{name} ({share:g})" for name, share in shares.items())
            + " leave nothing for full pages; lower them until their sum is below 1"
        )


def _layouts(
    page_size: int, shapes: ModelShapes, itemsize: int, held: Sequence[GroupOfRank]
) -> dict[Component, tuple[BlockLayout, ...]]:
    layouts = {Component.FULL: _by_group(shapes.full, page_size, itemsize, Component.FULL, held)}
    if shapes.sliding:
        layouts[Component.SLIDING] = _by_group(shapes.sliding, page_size, itemsize, Component.SLIDING, held)
    if shapes.states:
        blob = LayerShape(1, shapes.states_bytes(), 0)
        layouts[Component.RECURRENT] = (BlockLayout([blob], 1, 1, Component.RECURRENT, Group()),)
    return layouts


def _by_group(
    layers: Sequence[LayerShape],
    page_size: int,
    itemsize: int,
    component: Component,
    held: Sequence[GroupOfRank],
) -> tuple[BlockLayout, ...]:
    return tuple(
        BlockLayout(
            [replace(layer, heads=layer.heads // own.share.of) for layer in layers],
            page_size,
            itemsize,
            component,
            own.group,
        )
        for own in held
    )


def _window_slots(
    memory: int, cache: CacheSettings, shapes: ModelShapes, itemsize: int, chunk_pages: int
) -> int:
    if not shapes.sliding or shapes.window is None:
        return 0
    page = BlockLayout(shapes.sliding, cache.page_size, itemsize).payload_bytes
    least = trailing(shapes.window, cache.page_size).pages + chunk_pages + 2
    if memory // page < least:
        raise DeviceMemoryTooSmall(
            f"cache.device_memory with cache.sliding_share {cache.sliding_share:g} gives sliding windows "
            f"{format_size(memory)}: {memory // page} pages of {page} bytes, where {least} must fit for one request; "
            "raise either, or lower scheduler.token_budget"
        )
    return memory // page


def _checkpoint_slots(memory: int, each: int, error: type[MemoryTooSmall]) -> int:
    """Checkpoints that fit. Without two of them hardly a history could be taken up again."""
    if memory // each < 2:
        raise error(
            f"{error.setting} and cache.recurrent_share give checkpoints {format_size(memory)}, where two of "
            f"{format_size(each)} must fit; raise either, or set cache.unified"
        )
    return memory // each


def _host_slots(memory: int, layouts: Sequence[BlockLayout]) -> int:
    if len(layouts) == 1:
        return host_slots_for(memory, layouts[0], minimum=1)
    slots = _side_slots(memory, layouts)
    if memory and not slots:
        raise HostMemoryTooSmall(f"cache.host_memory: {format_size(memory)} does not hold one page; raise it")
    return slots


def _side_slots(memory: int, layouts: Sequence[BlockLayout]) -> int:
    each = sum(layout.block_bytes for layout in layouts)
    return memory // each if each else 0


def host_specs(
    budget: Budget, memory: DeviceMemory, held: Sequence[GroupOfRank]
) -> dict[Component, list[BlockSpec]]:
    """What to lay out in the host slab of a rank with `memory` that holds the groups `held`."""
    slots = {
        Component.FULL: (budget.host.full, memory.full),
        Component.SLIDING: (budget.host.sliding, memory.sliding),
    }
    specs = {
        component: [
            BlockSpec(layout, count, pool, own.share, own.writes)
            for layout, own in zip(budget.layouts[component], held, strict=True)
        ]
        for component, (count, pool) in slots.items()
        if component in budget.layouts
    }
    if Component.RECURRENT in budget.layouts:
        blob = budget.layouts[Component.RECURRENT][0]
        specs[Component.RECURRENT] = [BlockSpec(blob, budget.host.recurrent)]
    return specs


def shelves(budget: Budget, groups: int) -> dict[Component, list[Shelf]]:
    """Where the blocks of all ranks together lie in the store: every page in all of `groups` groups."""
    return {
        component: [Shelf(component, Group())]
        if component is Component.RECURRENT
        else [Shelf(component, Group(index, groups)) for index in range(groups)]
        for component in budget.layouts
    }
