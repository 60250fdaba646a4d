"""Copies between the layer-first pool and page-first blocks: exact, where they belong, and nowhere else."""

import pytest
import torch

from stratakv.kernels.kv_copy import backup, load, load_layer
from stratakv.kernels.pool import DevicePool, bytes_per_page
from stratakv.kernels.shapes import LayerShape, Share

SHAPES = [LayerShape(2, 8, 8), LayerShape(1, 6, 4), LayerShape(3, 8, 16)]
OFFSET = 256


def random_pool(page_size: int, dtype: torch.dtype, slots: int = 7) -> DevicePool:
    pool = DevicePool(SHAPES, slots, page_size, dtype)
    for memory in (*pool.keys, *pool.values):
        memory.copy_(torch.randn(memory.shape))
    return pool


def random_host(page_size: int, dtype: torch.dtype, slots: int = 9) -> torch.Tensor:
    size = OFFSET + bytes_per_page(SHAPES, page_size, dtype) + 64
    return torch.randint(0, 256, (slots, size - size % 64), dtype=torch.uint8)


def pool_bytes(pool: DevicePool, slot: int) -> bytes:
    """A page as its block's payload should be: for each layer K, then V."""
    parts = []
    for keys, values in zip(pool.keys, pool.values, strict=True):
        parts += [keys[slot].contiguous().view(torch.uint8), values[slot].contiguous().view(torch.uint8)]
    return b"".join(part.numpy().tobytes() for part in parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_backup_writes_payloads_and_nothing_else(page_size, dtype):
    pool, host = random_pool(page_size, dtype), random_host(page_size, dtype)
    before, pages_before = host.clone(), [pool_bytes(pool, slot) for slot in range(pool.slots)]
    pairs = {5: 8, 0: 2, 3: 0}
    backup(pool, host, OFFSET, list(pairs), list(pairs.values()))
    size = bytes_per_page(SHAPES, page_size, dtype)
    assert len(pages_before[0]) == size
    for device_slot, host_slot in pairs.items():
        assert host[host_slot, OFFSET : OFFSET + size].numpy().tobytes() == pages_before[device_slot]
        before[host_slot, OFFSET : OFFSET + size] = host[host_slot, OFFSET : OFFSET + size]
    assert torch.equal(host, before)
    assert [pool_bytes(pool, slot) for slot in range(pool.slots)] == pages_before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_a_page_comes_back_as_it_was(page_size, dtype):
    pool, host = random_pool(page_size, dtype), random_host(page_size, dtype)
    pages = [pool_bytes(pool, slot) for slot in range(pool.slots)]
    backup(pool, host, OFFSET, (5, 0, 3), (8, 2, 0))
    kept = host.clone()
    load(pool, host, OFFSET, (1, 6, 2), (8, 2, 0))
    after = [pool_bytes(pool, slot) for slot in range(pool.slots)]
    assert after == [pages[0], pages[5], pages[3], pages[3], pages[4], pages[5], pages[0]]
    assert torch.equal(host, kept)


def test_layer_by_layer_equals_at_once():
    pool, host = random_pool(4, torch.float32), random_host(4, torch.float32)
    backup(pool, host, OFFSET, (5, 0), (8, 2))
    other = random_pool(4, torch.float32)
    untouched = [pool_bytes(other, slot) for slot in range(other.slots)]
    load_layer(other, host, OFFSET, 1, (3, 4), (8, 2))
    assert torch.equal(other.keys[1][3], pool.keys[1][5])
    assert torch.equal(other.values[1][4], pool.values[1][0])
    for layer in (0, 2):
        load_layer(other, host, OFFSET, layer, (3, 4), (8, 2))
    assert pool_bytes(other, 3) == pool_bytes(pool, 5)
    assert pool_bytes(other, 4) == pool_bytes(pool, 0)
    assert [pool_bytes(other, s) for s in (0, 1, 2, 5, 6)] == [untouched[s] for s in (0, 1, 2, 5, 6)]


def test_nothing_to_copy():
    pool, host = random_pool(4, torch.float32), random_host(4, torch.float32)
    before = host.clone()
    backup(pool, host, OFFSET, (), ())
    assert torch.equal(host, before)


def test_errors_say_what_does_not_fit():
    pool, host = random_pool(4, torch.float32), random_host(4, torch.float32)
    with pytest.raises(ValueError, match="do not pair"):
        backup(pool, host, OFFSET, (1, 2), (1,))
    with pytest.raises(ValueError, match="does not fit a block"):
        load(pool, host, host.shape[1] - 8, (1,), (1,))
    with pytest.raises(ValueError, match="multiples of 4 bytes"):
        load(pool, host, OFFSET + 2, (1,), (1,))
    with pytest.raises(IndexError):
        load(pool, host, OFFSET, (1,), (99,))


def test_pool_states_its_size():
    pool = DevicePool(SHAPES, 5, 4, torch.bfloat16)
    taken = sum(memory.numel() * memory.element_size() for memory in (*pool.keys, *pool.values))
    assert taken == 5 * bytes_per_page(SHAPES, 4, torch.bfloat16)
    pool.key_rows[2][4 * 3 + 1] = 7
    assert (pool.keys[2][3, 1] == 7).all()
    with pytest.raises(ValueError, match="a pool needs a slot"):
        DevicePool(SHAPES, 0, 4, torch.float32)


@pytest.mark.parametrize("shape", [LayerShape(4, 6, 10), LayerShape(2, 4, 0)])
def test_shares_of_the_heads_make_up_the_page(shape):
    """Each share goes to a block of its own, which holds what a pool of those heads alone would write."""
    pool = DevicePool([shape, LayerShape(2, 8, 8)], 5, 4, torch.float32)
    for memory in (*pool.keys, *pool.values):
        memory.copy_(torch.randn(memory.shape))
    other = DevicePool(pool.shapes, 5, 4, torch.float32)
    half = [LayerShape(s.heads // 2, s.key_dim, s.value_dim) for s in pool.shapes]
    for index in range(2):
        share, part = Share(index, 2), DevicePool(half, 5, 4, torch.float32)
        for own, whole in zip((*part.keys, *part.values), (*pool.keys, *pool.values), strict=True):
            heads = own.shape[2]
            own.copy_(whole[:, :, index * heads : (index + 1) * heads])
        host = torch.zeros(3, OFFSET + 2 * bytes_per_page(half, 4, torch.float32), dtype=torch.uint8)
        expected = host.clone()
        backup(pool, host, OFFSET, (4, 1), (0, 2), share)
        backup(part, expected, OFFSET, (4, 1), (0, 2))
        assert torch.equal(host, expected)
        load(other, host, OFFSET, (4,), (0,), share)
        for layer in range(2):
            load_layer(other, host, OFFSET, layer, (1,), (2,), share)
    assert [pool_bytes(other, slot) for slot in (4, 1)] == [pool_bytes(pool, slot) for slot in (4, 1)]
    assert not any(memory[[0, 2, 3]].any() for memory in (*other.keys, *other.values))


def test_heads_that_do_not_part_are_refused():
    pool, host = random_pool(4, torch.float32), random_host(4, torch.float32)
    with pytest.raises(ValueError, match="1 heads do not part into 2 equal shares"):
        backup(pool, host, OFFSET, (1,), (1,), Share(0, 2))
    with pytest.raises(ValueError, match="no share 2 of 2"):
        Share(2, 2)
