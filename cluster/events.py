"""What a head tells a router of its pages: a snapshot when asked, and from then on every change, numbered.

A router sends `Watch`; the head answers with a `Snapshot` in chunks, of the state after event batch `sequence`,
and then sends each `PageEvents` batch from `sequence + 1` on. Whoever misses a number watches again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

import msgspec

from stratakv.storage.residence import Changes, Holdings
from stratakv.storage.tiers import Component, PageKey

KEY_BYTES = 32
_CHUNK = 16_384  # keys of either set in one chunk: half a MiB each


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """Router to head: send a snapshot, and page events from then on. Sent again after a loss."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot", omit_defaults=True):
    """A part of what a replica holds after event batch `sequence`. Chunks are numbered from 0; keys are packed,
    those of side components under the component's name."""

    generation: int
    sequence: int
    chunk: int
    last: bool
    device: bytes
    held: bytes
    side: dict[Component, bytes] = {}


class PageEvents(msgspec.Struct, frozen=True, kw_only=True, tag="events", omit_defaults=True):
    """Batch number `sequence` of what changed in a replica's sets. Keys are packed, those of side components under the
    component's name."""

    generation: int
    sequence: int
    device_added: bytes = b""
    device_removed: bytes = b""
    held_added: bytes = b""
    held_removed: bytes = b""
    side_added: dict[Component, bytes] = {}
    side_removed: dict[Component, bytes] = {}


class PackedKeys(Sequence[PageKey]):
    """Keys laid end to end, read in place. ValueError when `data` is not whole keys."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes):
        if len(data) % KEY_BYTES:
            raise ValueError(f"{len(data)} bytes are not whole page keys of {KEY_BYTES} bytes")
        self._data = data

    def __len__(self) -> int:
        return len(self._data) // KEY_BYTES

    @overload
    def __getitem__(self, index: int) -> PageKey: ...
    @overload
    def __getitem__(self, index: slice) -> "PackedKeys": ...
    def __getitem__(self, index: "int | slice") -> "PageKey | PackedKeys":
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("packed keys are sliced in steps of 1 only")
            return PackedKeys(self._data[KEY_BYTES * start : KEY_BYTES * stop])
        position = range(len(self))[index]
        return self._data[KEY_BYTES * position : KEY_BYTES * (position + 1)]

    def __iter__(self) -> Iterator[PageKey]:
        data = self._data
        return (data[start : start + KEY_BYTES] for start in range(0, len(data), KEY_BYTES))


def pack_keys(keys: Iterable[PageKey]) -> bytes:
    """`keys` laid end to end, the form messages have them in."""
    return b"".join(keys)


def pack_changes(generation: int, sequence: int, changes: Changes) -> PageEvents:
    """`changes` as batch number `sequence`."""
    return PageEvents(
        generation=generation,
        sequence=sequence,
        device_added=pack_keys(changes.device_added),
        device_removed=pack_keys(changes.device_removed),
        held_added=pack_keys(changes.held_added),
        held_removed=pack_keys(changes.held_removed),
        side_added=_pack_side(changes.side_added),
        side_removed=_pack_side(changes.side_removed),
    )


def unpack_changes(events: PageEvents) -> Changes:
    """What `pack_changes` packed. ValueError for bytes that are not whole keys."""
    return Changes(
        device_added=tuple(PackedKeys(events.device_added)),
        device_removed=tuple(PackedKeys(events.device_removed)),
        held_added=tuple(PackedKeys(events.held_added)),
        held_removed=tuple(PackedKeys(events.held_removed)),
        side_added={component: tuple(PackedKeys(keys)) for component, keys in events.side_added.items()},
        side_removed={component: tuple(PackedKeys(keys)) for component, keys in events.side_removed.items()},
    )


def _pack_side(side: Mapping[Component, Sequence[PageKey]]) -> dict[Component, bytes]:
    """Components that have no keys are left out."""
    return {component: pack_keys(keys) for component, keys in side.items() if keys}


def pack_snapshot(
    generation: int, sequence: int, holdings: Holdings, chunk_keys: int = _CHUNK
) -> Iterator[Snapshot]:
    """`holdings` in chunks of at most `chunk_keys` keys of each set; one empty chunk when nothing is held."""
    longest = max(len(keys) for keys in (holdings.device, holdings.held, *holdings.side.values()))
    chunks = max(1, -(-longest // chunk_keys))
    for chunk in range(chunks):
        part = slice(chunk * chunk_keys, (chunk + 1) * chunk_keys)
        yield Snapshot(
            generation=generation,
            sequence=sequence,
            chunk=chunk,
            last=chunk == chunks - 1,
            device=pack_keys(holdings.device[part]),
            held=pack_keys(holdings.held[part]),
            side=_pack_side({component: keys[part] for component, keys in holdings.side.items()}),
        )


class SnapshotParts:
    """Puts the chunks of a snapshot together again."""

    def __init__(self) -> None:
        self._parts: list[Snapshot] = []

    def add(self, part: Snapshot) -> Holdings | None:
        """Take a chunk; what was held once it is the last. A first chunk starts anew, and one that does not follow
        on the chunk before is dropped with all before it. ValueError for bytes that are not whole keys."""
        if part.chunk == 0:
            self._parts = []
        if part.chunk != len(self._parts) or any(
            part.sequence != other.sequence for other in self._parts[:1]
        ):
            self._parts = []
            return None
        self._parts.append(part)
        if not part.last:
            return None
        parts, self._parts = self._parts, []
        return Holdings(
            device=PackedKeys(b"".join(each.device for each in parts)),
            held=PackedKeys(b"".join(each.held for each in parts)),
            side={
                component: PackedKeys(b"".join(each.side.get(component, b"") for each in parts))
                for component in {component for each in parts for component in each.side}
            },
        )
