"""What a block says of itself: 256 bytes before its payload, in host memory and in the store alike.

A worker seals a block with its header when the payload is complete. Whoever finds the block later, after a
restart or in the store, believes nothing but a header that fits what was asked for.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag

from stratakv.storage.layout import HEADER_BYTES, BlockLayout, Group, header_offset_of
from stratakv.storage.moves import PageStamp
from stratakv.storage.tiers import Component, PageKey

FORMAT_VERSION = 1

_MAGIC = b"STRATAKV"


class HeaderError(ValueError):
    """The bytes are not a header that vouches for its payload."""


class HeaderCleared(HeaderError):
    """All zero: the slot is empty, or its payload was being overwritten."""


class HeaderForeign(HeaderError):
    """Written by something else, or in another format version."""


class HeaderCorrupt(HeaderError):
    """Ours once, but its bytes have changed or were written in part."""


class _Has(IntFlag):
    """Which optional fields of a header are set. Without its flag a field is zero and means nothing."""

    CHECKSUM = 1
    PARENT = 2
    NAMESPACE = 4


# magic, version, flags, identity, namespace, key, parent, component, group index and of, depth, checksum, length
_HEADER = struct.Struct("<8sII32s32s32s32s16sIIIIQ68x")
_HEADER_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """What a block says of itself, in 256 bytes.

    `identity` is 32 raw bytes; `parent` is empty at the root and `namespace` when there is none; `depth`
    counts pages from 1; `length` is the bytes of the payload and `checksum` its CRC-32, or None if it was not
    computed.
    """

    identity: bytes
    key: PageKey
    parent: bytes
    depth: int
    namespace: bytes
    component: Component
    group: Group
    length: int
    checksum: int | None

    @classmethod
    def of(
        cls, stamp: PageStamp, layout: BlockLayout, identity: bytes, checksum: int | None
    ) -> "BlockHeader":
        """The header of the page that `stamp` describes, in a block of `layout`."""
        return cls(
            identity=identity,
            key=stamp.key,
            parent=stamp.parent,
            depth=stamp.depth,
            namespace=stamp.namespace,
            component=layout.component,
            group=layout.group,
            length=layout.payload_bytes,
            checksum=checksum,
        )

    def pack(self) -> bytes:
        """256 bytes. ValueError if a digest is not 32 bytes long."""
        _check_digests({"identity": self.identity, "key": self.key})
        _check_digests({"parent": self.parent or bytes(32), "namespace": self.namespace or bytes(32)})
        flags = _Has(0)
        flags |= _Has.CHECKSUM if self.checksum is not None else _Has(0)
        flags |= _Has.PARENT if self.parent else _Has(0)
        flags |= _Has.NAMESPACE if self.namespace else _Has(0)
        body = _HEADER.pack(
            _MAGIC,
            FORMAT_VERSION,
            flags,
            self.identity,
            self.namespace,
            self.key,
            self.parent,
            self.component.encode(),
            self.group.index,
            self.group.of,
            self.depth,
            self.checksum or 0,
            self.length,
        )
        return body + _HEADER_CHECKSUM.pack(zlib.crc32(body))

    @classmethod
    def unpack(cls, data: bytes) -> "BlockHeader":
        """The header in `data`. Raises HeaderCleared, HeaderForeign or HeaderCorrupt."""
        if len(data) != HEADER_BYTES:
            raise HeaderCorrupt(f"a block header has {HEADER_BYTES} bytes, here are {len(data)}")
        if not any(data):
            raise HeaderCleared("the block header is cleared")
        if not data.startswith(_MAGIC):
            raise HeaderForeign(f"the block header starts with {data[:8]!r}, not with {_MAGIC!r}")
        unpacked = _HEADER.unpack_from(data)
        _, version, bits, identity, namespace, key, parent, component, index, of, depth, checksum, length = (
            unpacked
        )
        if version != FORMAT_VERSION:
            raise HeaderForeign(f"the block has format version {version}; this build reads {FORMAT_VERSION}")
        if _HEADER_CHECKSUM.unpack_from(data, _HEADER.size) != (zlib.crc32(data[: _HEADER.size]),):
            raise HeaderCorrupt("the block header does not match its own checksum")
        flags = _Has(bits)
        try:
            named, group = Component(component.rstrip(b"\0").decode()), Group(index, of)
        except ValueError as error:
            raise HeaderForeign(f"the block holds what this build does not know: {error}") from None
        return cls(
            identity=identity,
            key=key,
            parent=parent if _Has.PARENT in flags else b"",
            depth=depth,
            namespace=namespace if _Has.NAMESPACE in flags else b"",
            component=named,
            group=group,
            length=length,
            checksum=checksum if _Has.CHECKSUM in flags else None,
        )


def chain_stamps(
    keys: Sequence[PageKey], parent: bytes, depth: int, namespace: bytes
) -> tuple[PageStamp, ...]:
    """The stamps of pages that follow each other: the first has this `parent` (empty at the root) and `depth`."""
    parents = [parent, *keys][: len(keys)]
    return tuple(
        PageStamp(key, before, depth + index, namespace)
        for index, (key, before) in enumerate(zip(keys, parents, strict=True))
    )


def peek_header(start: bytes | memoryview, block_bytes: int) -> BlockHeader | None:
    """The header of a block of `block_bytes` whose layout is not known, from its first 4,096 bytes. None if unsound."""
    offset = header_offset_of(block_bytes)
    try:
        return BlockHeader.unpack(bytes(start[offset : offset + HEADER_BYTES]))
    except HeaderError:
        return None


def _check_digests(digests: dict[str, bytes]) -> None:
    for name, digest in digests.items():
        if len(digest) != 32:
            raise ValueError(f"{name} of a block header is {len(digest)} bytes long; a digest has 32")
