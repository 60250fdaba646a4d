"""Checkpoints of recurrent state: whole, bit for bit, through the device, scattered pages and host blocks."""

import pytest
import torch

from stratakv.kernels.checkpoints import Checkpoints, FixedCheckpoints, UnifiedCheckpoints, load_state
from stratakv.kernels.memory import DeviceMemory
from stratakv.kernels.pool import DevicePool
from stratakv.kernels.shapes import LayerShape, ModelShapes, StateShape
from stratakv.kernels.states import StatePool

STATES = (
    StateShape(0, "conv.0", (3, 5), "bfloat16", 2),
    StateShape(0, "recurrent.0", (2, 4, 3), "float32", 4),
    StateShape(4, "conv.0", (7,), "bfloat16", 2),
)
BYTES = 30 + 96 + 14
OFFSET = 64


@pytest.fixture
def states() -> StatePool:
    pool = StatePool(STATES, 5)
    for tensor in pool.tensors:
        tensor.copy_(torch.randn(tensor.shape))
    return pool


@pytest.fixture
def pages() -> DevicePool:
    """Page slots of 24 elements and a layer without V."""
    pool = DevicePool([LayerShape(1, 5, 3), LayerShape(1, 4, 0)], 9, 2, torch.bfloat16)
    for memory in (*pool.keys, *pool.values):
        memory.copy_(torch.randn(memory.shape))
    return pool


def content(states: StatePool, slot: int) -> list[torch.Tensor]:
    return [tensor[slot].clone() for tensor in states.tensors]


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def test_a_state_packs_into_its_bytes(states):
    assert states.bytes_per_slot == BYTES == ModelShapes((LayerShape(1, 1, 1),), states=STATES).states_bytes()
    before = [content(states, slot) for slot in range(5)]
    packed = states.pack(3)
    assert packed.dtype == torch.uint8 and packed.shape == (BYTES,)
    assert packed[:30].view(torch.bfloat16).tolist() == states.tensors[0][3].flatten().tolist()
    states.unpack(1, packed)
    assert equal(content(states, 1), before[3])
    assert all(equal(content(states, slot), before[slot]) for slot in (0, 2, 3, 4))
    with pytest.raises(ValueError, match="a state has 140 bytes"):
        states.unpack(1, packed[:-1])


def test_cleared_states_are_zero_and_others_stay(states):
    before = [content(states, slot) for slot in range(5)]
    states.clear([4, 0])
    states.clear([])
    assert not any(tensor[[0, 4]].any() for tensor in states.tensors)
    assert all(equal(content(states, slot), before[slot]) for slot in (1, 2, 3))


def test_states_are_found_by_layer(states):
    assert states.by_layer[0]["recurrent.0"] is states.tensors[1]
    assert states.by_layer[4]["conv.0"] is states.tensors[2]


@pytest.fixture(params=["fixed", "unified"])
def kept(request, pages) -> tuple[Checkpoints, tuple[int, ...], tuple[int, ...]]:
    """Checkpoints and two places."""
    if request.param == "fixed":
        return FixedCheckpoints(4, BYTES), (2,), (0,)
    unified = UnifiedCheckpoints(pages, BYTES)
    assert unified.pages_per_checkpoint == 3  # 140 bytes over pages of 48
    return unified, (7, 0, 4), (1, 8, 2)


def test_a_checkpoint_comes_back_as_it_was(states, kept):
    checkpoints, place, other = kept
    first, second = content(states, 1), content(states, 2)
    checkpoints.save(states, 1, place)
    checkpoints.save(states, 2, other)
    for tensor in states.tensors:
        tensor.fill_(float("nan"))
    checkpoints.restore(states, 4, place)
    checkpoints.restore(states, 0, other)
    checkpoints.restore(states, 3, place)
    assert equal(content(states, 4), first) and equal(content(states, 3), first)
    assert equal(content(states, 0), second)
    assert states.tensors[0][1].isnan().all()


def test_a_checkpoint_reaches_the_host_and_comes_back(states, kept):
    checkpoints, place, _ = kept
    expected = content(states, 1)
    host = torch.randint(0, 256, (4, OFFSET + BYTES + 20), dtype=torch.uint8)
    before = host.clone()
    checkpoints.save(states, 1, place)
    checkpoints.backup(host, OFFSET, place, 2)
    before[2, OFFSET : OFFSET + BYTES] = states.pack(1)
    assert torch.equal(host, before)
    load_state(states, host, OFFSET, 2, 0)
    assert equal(content(states, 0), expected)
    assert torch.equal(host, before)


def test_unified_checkpoints_touch_only_their_pages(states, pages):
    before = [memory.clone() for memory in (*pages.keys, *pages.values)]
    UnifiedCheckpoints(pages, BYTES).save(states, 1, (7, 0, 4))
    for memory, old in zip((*pages.keys, *pages.values), before, strict=True):
        assert torch.equal(memory[[1, 2, 3, 5, 6, 8]], old[[1, 2, 3, 5, 6, 8]])


def test_what_does_not_fit_is_refused(states, kept):
    checkpoints, place, _ = kept
    with pytest.raises(ValueError, match="a checkpoint lies in"):
        checkpoints.save(states, 0, (*place, 3))
    host = torch.zeros(2, OFFSET + BYTES - 1, dtype=torch.uint8)
    with pytest.raises(ValueError, match="does not fit a block"):
        checkpoints.backup(host, OFFSET, place, 1)
    with pytest.raises(ValueError, match="does not fit a block"):
        load_state(states, host, OFFSET, 1, 0)


def build(shapes: ModelShapes, **slots: object) -> DeviceMemory:
    return DeviceMemory.build(shapes, **{"full": 3, "page_size": 4, "dtype": torch.float32, **slots})


def test_memory_is_what_the_model_needs():
    plain = (LayerShape(1, 2, 2),)
    memory = build(ModelShapes(plain))
    assert (memory.sliding, memory.states, memory.checkpoints) == (None, None, None)
    shapes = ModelShapes(plain, sliding=plain, window=8, states=STATES)
    memory = build(shapes, sliding=2, states=3, checkpoints=5)
    assert (memory.full.slots, memory.sliding.slots, memory.states.slots) == (3, 2, 3)
    assert isinstance(memory.checkpoints, FixedCheckpoints) and memory.checkpoints.slots == 5
    assert isinstance(build(shapes, sliding=2, states=3, unified=True).checkpoints, UnifiedCheckpoints)
    assert build(shapes, sliding=2, states=3).checkpoints is None


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ({"states": 1}, "sliding: 0 slots for a model that needs some"),
        ({"sliding": 1}, "states: 0 slots for a model that needs some"),
        ({"sliding": 1, "states": 1, "checkpoints": 1, "unified": True}, "they share the full pool"),
        ({"sliding": 1, "states": 1, "full": 0}, "a pool needs a slot"),
    ],
)
def test_memory_that_does_not_suit_the_model_is_refused(slots, message):
    plain = (LayerShape(1, 2, 2),)
    with pytest.raises(ValueError, match=message):
        build(ModelShapes(plain, sliding=plain, window=8, states=STATES), **slots)


def test_memory_without_a_use_is_refused():
    shapes = ModelShapes((LayerShape(1, 2, 2),))
    with pytest.raises(ValueError, match="sliding: 1 slots for a model that needs none"):
        build(shapes, sliding=1)
    with pytest.raises(ValueError, match="keeps no recurrent state"):
        build(shapes, checkpoints=1)
    with pytest.raises(ValueError, match="without a layer of full attention"):
        ModelShapes(())
    with pytest.raises(ValueError, match="do not go with a window"):
        ModelShapes((LayerShape(1, 2, 2),), window=4)
