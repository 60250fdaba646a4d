"""How the bytes of a page lie: its block per component and group, their header, their identity.

A block is `[header room | layer, k|v, token, head in group, dim]`, contiguous, in host memory and in the
store alike, so that an object of the store is written from it and read into it without a copy. The header
takes the last bytes of its room: the payload follows it directly, aligned for O_DIRECT where blocks are
large.
"""

import json
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from enum import IntFlag
from functools import cached_property
from hashlib import sha256
from itertools import groupby

import msgspec

from stratakv.kernels.shapes import LayerShape
from stratakv.storage.moves import PageStamp
from stratakv.storage.settings import format_size
from stratakv.storage.tiers import Component, PageKey

HEADER_BYTES = 256
FORMAT_VERSION = 1

_MAGIC = b"STRATAKV"
_SMALL_ALIGNMENT = 64
_LARGE_ALIGNMENT = 4096
_LARGE_PAYLOAD = 64 * 1024
_MIB = 2**20


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """Share `index` of `of` equal shares of the KV heads, written `g{i}of{G}`. `g0of1` is all of them."""

    index: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise ValueError(f"there is no group {self.index} of {self.of}; groups are numbered from 0")

    def __str__(self) -> str:
        return f"g{self.index}of{self.of}"

    @classmethod
    def parse(cls, text: str) -> "Group":
        """The group that `text` names. ValueError for anything but `g{i}of{G}`."""
        match = re.fullmatch(r"g([0-9]+)of([0-9]+)", text)
        if not match:
            raise ValueError(f"{text!r} is not a group; write it as g0of1")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class LayerSlice:
    """Where one layer's K and V lie in a payload: bytes from its start, shapes as (token, head, dim)."""

    key_offset: int
    key_shape: tuple[int, int, int]
    value_offset: int
    value_shape: tuple[int, int, int]


@dataclass(frozen=True)
class BlockLayout:
    """The block of one page of `component` and `group`.

    `shapes` has one entry per layer, with the heads of this group alone; `itemsize` is the bytes of one
    element. All offsets and lengths are bytes; offsets count from the start of the block unless they say
    otherwise.
    """

    shapes: Sequence[LayerShape]
    page_size: int
    itemsize: int
    component: Component = Component.FULL
    group: Group = Group()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shapes", tuple(self.shapes))
        if self.page_size < 1 or self.itemsize < 1 or not self.payload_bytes:
            raise ValueError(
                f"a page of {self.page_size} tokens, {len(self.shapes)} layers and {self.itemsize} bytes an "
                "element holds nothing; each must be 1 or more"
            )

    @cached_property
    def payload_bytes(self) -> int:
        """KV of one page, without header or padding. Also what the page takes in the device pool."""
        return self.page_size * self.itemsize * sum(shape.elements_per_token() for shape in self.shapes)

    @property
    def alignment(self) -> int:
        """What header room and block are rounded up to. Part of the identity."""
        return _LARGE_ALIGNMENT if self.payload_bytes >= _LARGE_PAYLOAD else _SMALL_ALIGNMENT

    @property
    def payload_offset(self) -> int:
        """Where the payload starts: the length of the header room."""
        return _round_up(HEADER_BYTES, self.alignment)

    @property
    def header_offset(self) -> int:
        """Where the header starts; the room before it is unused."""
        return self.payload_offset - HEADER_BYTES

    @cached_property
    def block_bytes(self) -> int:
        """Length of the whole block, padding included: the distance from one slot to the next."""
        return _round_up(self.payload_offset + self.payload_bytes, self.alignment)

    @cached_property
    def layer_slices(self) -> tuple[LayerSlice, ...]:
        """One slice per layer, in order. They tile the payload without gaps."""
        slices, offset = [], 0
        for shape in self.shapes:
            key_shape = (self.page_size, shape.heads, shape.key_dim)
            value_shape = (self.page_size, shape.heads, shape.value_dim)
            value_offset = offset + self.itemsize * self.page_size * shape.heads * shape.key_dim
            slices.append(LayerSlice(offset, key_shape, value_offset, value_shape))
            offset += self.itemsize * self.page_size * shape.elements_per_token()
        return tuple(slices)


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


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


def _check_digests(digests: dict[str, bytes]) -> None:
    for name, digest in digests.items():
        if len(digest) != 32:
            raise ValueError(f"{name} of a block header is {len(digest)} bytes long; a digest has 32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """All that makes KV bytes mean something. Parties whose digests are equal may read each other's pages.

    Digests are hex. `component_shapes` has a line per component as `describe_shapes` writes it, with the
    heads of the whole model: neither TP size nor rank nor pool layout is part of an identity.
    """

    model_config: str
    weights: str
    kv_dtype: str
    page_size: int
    component_shapes: tuple[str, ...]
    alignment: int
    codec: str = "none"
    object_format: int = FORMAT_VERSION

    def digest(self) -> str:
        """64 hex digits over all fields."""
        return sha256(json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_json(self) -> str:
        """A readable form that `from_json` takes back."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Identity":
        """The identity that `to_json` wrote. ValueError says what is wrong with the text."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(f"not an identity: {error}") from None

    def difference(self, other: "Identity") -> list[str]:
        """A line for each field in which `other` differs, such as "page_size (64 here, 16 there)"."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{field.name} ({_brief(mine[field.name])} here, {_brief(theirs[field.name])} there)"
            for field in fields(self)
            if mine[field.name] != theirs[field.name]
        ]


def describe_shapes(component: Component, shapes: Sequence[LayerShape]) -> str:
    """One readable line for all layers of a component: `full: 30 x (heads 3, key_dim 64, value_dim 64)`."""
    runs = [(len(list(run)), shape) for shape, run in groupby(shapes)]
    text = (f"{n} x (heads {s.heads}, key_dim {s.key_dim}, value_dim {s.value_dim})" for n, s in runs)
    return f"{component}: {', '.join(text)}"


def _brief(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        return value[:12]
    return "; ".join(value) if isinstance(value, tuple) else str(value)


class MemoryTooSmall(ValueError):
    """A memory setting does not hold the pages that must fit. The message says how much would."""

    setting: str


class DeviceMemoryTooSmall(MemoryTooSmall):
    """`cache.device_memory` is too small."""

    setting = "cache.device_memory"


class HostMemoryTooSmall(MemoryTooSmall):
    """`cache.host_memory` is too small."""

    setting = "cache.host_memory"


def device_slots_for(memory: int, layout: BlockLayout, minimum: int = 1) -> int:
    """Pages that fit `memory` bytes of a device pool. DeviceMemoryTooSmall if fewer than `minimum`."""
    return _slots_for(memory, layout.payload_bytes, minimum, DeviceMemoryTooSmall)


def host_slots_for(memory: int, layout: BlockLayout, minimum: int = 1) -> int:
    """Blocks that fit `memory` bytes of a host pool; 0 for 0, which turns the tier off.

    HostMemoryTooSmall if they are fewer than `minimum`.
    """
    return _slots_for(memory, layout.block_bytes, minimum, HostMemoryTooSmall) if memory else 0


def _slots_for(memory: int, page_bytes: int, minimum: int, error: type[MemoryTooSmall]) -> int:
    slots = memory // page_bytes
    if slots < minimum:
        enough = -(-minimum * page_bytes // _MIB)
        raise error(
            f"{error.setting} is {format_size(memory)}: room for {slots} pages of {page_bytes} bytes, where "
            f"{minimum} must fit; set it to {enough}MiB or more"
        )
    return slots
