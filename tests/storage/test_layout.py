import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratakv.kernels.shapes import LayerShape
from stratakv.storage.layout import (
    BlockLayout,
    DeviceMemoryTooSmall,
    Group,
    HostMemoryTooSmall,
    device_slots_for,
    host_slots_for,
)

shapes = st.builds(LayerShape, st.integers(1, 4), st.integers(1, 40), st.integers(1, 40))
layouts = st.builds(
    BlockLayout, st.lists(shapes, min_size=1, max_size=4), st.integers(1, 64), st.sampled_from([1, 2, 4])
)
SMALL = BlockLayout([LayerShape(1, 8, 8)], page_size=4, itemsize=4)
LARGE = BlockLayout([LayerShape(3, 64, 64)] * 30, page_size=64, itemsize=4)


@settings(deadline=None, max_examples=80)
@given(layouts)
def test_block_arithmetic(layout):
    alignment = 4096 if layout.payload_bytes >= 65536 else 64
    assert layout.alignment == alignment
    assert layout.header_offset + 256 == layout.payload_offset
    assert layout.payload_offset == max(256, alignment)
    assert layout.block_bytes % alignment == 0
    assert 0 <= layout.block_bytes - layout.payload_offset - layout.payload_bytes < alignment


@settings(deadline=None, max_examples=80)
@given(layouts)
def test_layer_slices_tile_the_payload_in_order(layout):
    position = 0
    for shape, part in zip(layout.shapes, layout.layer_slices, strict=True):
        assert part.key_shape == (layout.page_size, shape.heads, shape.key_dim)
        assert part.value_shape == (layout.page_size, shape.heads, shape.value_dim)
        assert part.key_offset == position
        assert part.value_offset == position + math.prod(part.key_shape) * layout.itemsize
        position = part.value_offset + math.prod(part.value_shape) * layout.itemsize
    assert position == layout.payload_bytes


def test_payload_order_is_layer_kv_token_head_dim():
    layout = BlockLayout([LayerShape(2, 3, 1), LayerShape(1, 2, 2)], page_size=2, itemsize=4)
    payload = np.arange(layout.payload_bytes // 4, dtype="<i4").view(np.uint8)
    first, second = layout.layer_slices

    def view(offset, shape):
        return payload[offset : offset + 4 * math.prod(shape)].view("<i4").reshape(shape)

    assert view(first.key_offset, first.key_shape)[1, 1].tolist() == [9, 10, 11]
    assert view(first.value_offset, first.value_shape)[:, :, 0].tolist() == [[12, 13], [14, 15]]
    assert view(second.key_offset, second.key_shape)[1, 0].tolist() == [18, 19]
    assert view(second.value_offset, second.value_shape)[1, 0].tolist() == [22, 23]


def test_a_known_model():
    assert LARGE.payload_bytes == 30 * 64 * 3 * 128 * 4 == 2949120
    assert (LARGE.header_offset, LARGE.payload_offset, LARGE.block_bytes) == (3840, 4096, 2953216)
    assert (SMALL.header_offset, SMALL.payload_offset, SMALL.block_bytes) == (0, 256, 512)


def test_the_alignment_changes_at_64_kib():
    below = BlockLayout([LayerShape(1, 1, 0)], page_size=65535, itemsize=1)
    at = BlockLayout([LayerShape(1, 1, 0)], page_size=65536, itemsize=1)
    assert (below.alignment, at.alignment) == (64, 4096)


def test_a_layout_is_a_value():
    again = BlockLayout((LayerShape(1, 8, 8),), page_size=4, itemsize=4)
    assert again == SMALL and hash(SMALL) == hash(again)


@pytest.mark.parametrize("bad", [([], 4, 4), ([LayerShape(1, 8, 8)], 0, 4), ([LayerShape(1, 8, 8)], 4, 0)])
def test_an_empty_layout(bad):
    with pytest.raises(ValueError, match="each must be 1 or more"):
        BlockLayout(*bad)


def test_groups_are_written_and_read():
    assert str(Group(2, 4)) == "g2of4"
    assert Group.parse("g2of4") == Group(2, 4)
    assert str(Group()) == "g0of1"
    for text in ("g4of4", "g0of0", "2of4", "g2of4 ", "g-1of4"):
        with pytest.raises(ValueError, match="group"):
            Group.parse(text)


def test_slots_that_fit():
    assert device_slots_for(10 * SMALL.payload_bytes + 1, SMALL) == 10
    assert host_slots_for(10 * SMALL.block_bytes - 1, SMALL) == 9
    assert host_slots_for(0, SMALL, minimum=4) == 0


def test_too_little_memory_names_the_setting_and_what_would_do():
    wanted = r"cache\.device_memory is 4MiB: room for 1 pages .* 3 must fit; set it to 9MiB"
    with pytest.raises(DeviceMemoryTooSmall, match=wanted):
        device_slots_for(4 * 2**20, LARGE, minimum=3)
    assert device_slots_for(9 * 2**20, LARGE, minimum=3) == 3
    with pytest.raises(HostMemoryTooSmall, match=r"cache\.host_memory is 1B.*set it to 3MiB"):
        host_slots_for(1, LARGE)
    with pytest.raises(DeviceMemoryTooSmall):
        device_slots_for(0, LARGE)
