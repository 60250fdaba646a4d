"""What makes a block trustworthy on its way between host memory and a store: its header, compared in full."""

import zlib
from dataclasses import asdict, replace

from stratakv.storage.header import BlockHeader, HeaderError
from stratakv.storage.layout import BlockLayout
from stratakv.storage.moves import PageStamp


class BadBlock(ValueError):
    """The bytes are not the sealed block they should be."""


def seal(layout: BlockLayout, identity: bytes, page: PageStamp, block: memoryview) -> BlockHeader:
    """The header of the caller's `block`, complete with checksum; written into the block if that had none.

    BadBlock unless the block vouches for just `page`, of this identity and layout, unchanged since it was sealed.
    """
    wanted = BlockHeader.of(page, layout, identity, _checksum(layout, block))
    found = _header(layout, block)
    if found.checksum is not None:
        _demand(found, wanted)
        return found
    _demand(replace(found, checksum=wanted.checksum), wanted)
    block[layout.header_offset : layout.payload_offset] = wanted.pack()
    return wanted


def verify(layout: BlockLayout, identity: bytes, page: PageStamp, block: memoryview) -> None:
    """BadBlock unless `block` holds just `page`, of this identity and layout, whole and unchanged."""
    _demand(_header(layout, block), BlockHeader.of(page, layout, identity, _checksum(layout, block)))


def void(layout: BlockLayout, block: memoryview) -> None:
    """Clear the header of `block`: nobody takes its payload for anything from here on."""
    block[layout.header_offset : layout.payload_offset] = bytes(layout.payload_offset - layout.header_offset)


def _header(layout: BlockLayout, block: memoryview) -> BlockHeader:
    try:
        return BlockHeader.unpack(bytes(block[layout.header_offset : layout.payload_offset]))
    except HeaderError as error:
        raise BadBlock(str(error)) from None


def _demand(found: BlockHeader, wanted: BlockHeader) -> None:
    if found == wanted:
        return
    have, want = asdict(found), asdict(wanted)
    name = next(name for name in have if have[name] != want[name])
    raise BadBlock(f"{name} is {_brief(have[name])}, where {_brief(want[name])} was expected")


def _brief(value: object) -> str:
    return (value.hex()[:12] or "none") if isinstance(value, bytes) else str(value)


def _checksum(layout: BlockLayout, block: memoryview) -> int:
    return zlib.crc32(block[layout.payload_offset : layout.payload_offset + layout.payload_bytes])
