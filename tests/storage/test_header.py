from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratakv.kernels.shapes import LayerShape
from stratakv.storage.header import BlockHeader, HeaderCleared, HeaderCorrupt, HeaderForeign
from stratakv.storage.layout import HEADER_BYTES, BlockLayout, Group
from stratakv.storage.moves import PageStamp
from stratakv.storage.tiers import Component

SMALL = BlockLayout([LayerShape(1, 8, 8)], page_size=4, itemsize=4)

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
