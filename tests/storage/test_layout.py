import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratakv.kernels.shapes import LayerShape
from stratakv.storage.layout import (
    HEADER_BYTES,
    BlockHeader,
    BlockLayout,
    DeviceMemoryTooSmall,
    Group,
    HeaderCleared,
    HeaderCorrupt,
    HeaderForeign,
    HostMemoryTooSmall,
    Identity,
    describe_shapes,
    device_slots_for,
    host_slots_for,
)
from stratakv.storage.moves import PageStamp
from stratakv.storage.tiers import Component

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
    assert layout.header_offset + HEADER_BYTES == layout.payload_offset
    assert layout.payload_offset == max(HEADER_BYTES, alignment)
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


digests = st.binary(min_size=32, max_size=32)
headers = st.builds(
    BlockHeader,
    identity=digests,
    key=digests,
    parent=st.one_of(st.just(b""), digests, st.just(bytes(32))),
    depth=st.integers(0, 2**32 - 1),
    namespace=st.one_of(st.just(b""), digests),
    component=st.sampled_from(Component),
    group=st.integers(1, 64).flatmap(lambda of: st.builds(Group, st.integers(0, of - 1), st.just(of))),
    length=st.integers(0, 2**64 - 1),
    checksum=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
)
HEADER = BlockHeader.of(PageStamp(b"k" * 32, b"", 1, b"n" * 32), SMALL, b"i" * 32, 0)


@settings(deadline=None, max_examples=100)
@given(headers)
def test_headers_come_back(header):
    packed = header.pack()
    assert len(packed) == HEADER_BYTES
    assert BlockHeader.unpack(packed) == header


def test_a_checksum_of_zero_is_not_a_missing_one():
    assert HEADER.checksum == 0
    missing = replace(HEADER, checksum=None)
    assert missing.pack() != HEADER.pack()
    assert BlockHeader.unpack(missing.pack()).checksum is None


def test_a_header_takes_component_group_and_length_from_the_layout():
    layout = BlockLayout(SMALL.shapes, 4, 4, Component.RECURRENT, Group(1, 2))
    header = BlockHeader.of(PageStamp(b"k" * 32, b"p" * 32, 9, b""), layout, b"i" * 32, None)
    assert (header.component, header.group, header.length) == (Component.RECURRENT, Group(1, 2), 256)
    assert (header.key, header.parent, header.depth, header.namespace) == (b"k" * 32, b"p" * 32, 9, b"")


@settings(deadline=None, max_examples=60)
@given(st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_no_changed_byte_passes(position, change):
    data = bytearray(HEADER.pack())
    data[position] ^= change
    with pytest.raises((HeaderForeign, HeaderCorrupt)):
        BlockHeader.unpack(bytes(data))


def test_every_bad_header_has_its_own_error():
    good = HEADER.pack()
    with pytest.raises(HeaderCleared, match="cleared"):
        BlockHeader.unpack(bytes(HEADER_BYTES))
    with pytest.raises(HeaderForeign, match="starts with"):
        BlockHeader.unpack(b"SOMEBODY" + good[8:])
    with pytest.raises(HeaderForeign, match="format version 2; this build reads 1"):
        BlockHeader.unpack(good[:8] + b"\x02" + good[9:])
    with pytest.raises(HeaderCorrupt, match="own checksum"):
        BlockHeader.unpack(good[:100] + bytes(156))
    with pytest.raises(HeaderCorrupt, match="here are 255"):
        BlockHeader.unpack(good[:255])


def test_a_digest_of_the_wrong_length_is_named():
    for name in ("identity", "key", "parent", "namespace"):
        with pytest.raises(ValueError, match=f"{name} of a block header is 31 bytes"):
            replace(HEADER, **{name: b"x" * 31}).pack()
    with pytest.raises(ValueError, match="key of a block header is 0 bytes"):
        replace(HEADER, key=b"").pack()


IDENTITY = Identity(
    model_config="a" * 64,
    weights="b" * 64,
    kv_dtype="float32",
    page_size=64,
    component_shapes=(describe_shapes(Component.FULL, LARGE.shapes),),
    alignment=4096,
)


def test_identity_comes_back_from_json():
    assert Identity.from_json(IDENTITY.to_json()) == IDENTITY
    assert json.loads(IDENTITY.to_json())["page_size"] == 64


def test_the_digest_depends_on_every_field():
    changed = [
        replace(IDENTITY, model_config="c" * 64),
        replace(IDENTITY, weights="c" * 64),
        replace(IDENTITY, kv_dtype="bfloat16"),
        replace(IDENTITY, page_size=16),
        replace(IDENTITY, component_shapes=()),
        replace(IDENTITY, alignment=64),
        replace(IDENTITY, codec="fp8"),
        replace(IDENTITY, object_format=2),
    ]
    assert len({identity.digest() for identity in [IDENTITY, *changed]}) == 9
    assert replace(IDENTITY).digest() == IDENTITY.digest()
    assert len(bytes.fromhex(IDENTITY.digest())) == 32


def test_a_difference_is_readable():
    other = replace(IDENTITY, page_size=16, weights="c" * 64)
    assert IDENTITY.difference(other) == [
        "weights (bbbbbbbbbbbb here, cccccccccccc there)",
        "page_size (64 here, 16 there)",
    ]
    assert IDENTITY.difference(IDENTITY) == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"page_size": "64"}'])
def test_what_is_no_identity(text):
    with pytest.raises(ValueError, match="not an identity"):
        Identity.from_json(text)


def test_shapes_are_described_in_runs():
    a, b = LayerShape(3, 64, 64), LayerShape(1, 192, 128)
    assert describe_shapes(Component.FULL, [a, a, b]) == (
        "full: 2 x (heads 3, key_dim 64, value_dim 64), 1 x (heads 1, key_dim 192, value_dim 128)"
    )


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
