import pytest

from stratakv.cluster.events import (
    PackedKeys,
    SnapshotParts,
    Watch,
    pack_changes,
    pack_keys,
    pack_snapshot,
    unpack_changes,
)
from stratakv.cluster.messages import decode_to_head, decode_to_router, encode
from stratakv.storage.residence import Changes, Holdings


def keys(*numbers):
    return [n.to_bytes(32, "big") for n in numbers]


def test_packed_keys_are_a_sequence_of_keys():
    packed = PackedKeys(pack_keys(keys(*range(10))))
    assert list(packed) == keys(*range(10)) and len(packed) == 10
    assert packed[3] == keys(3)[0] and packed[-1] == keys(9)[0]
    assert list(packed[2:5]) == keys(2, 3, 4) and list(packed[8:99]) == keys(8, 9) and not packed[5:2]
    with pytest.raises(IndexError):
        packed[10]
    with pytest.raises(ValueError, match="33 bytes are not whole page keys"):
        PackedKeys(bytes(33))


def test_changes_pass_the_wire():
    changes = Changes(tuple(keys(1, 2)), tuple(keys(3)), (), tuple(keys(4, 5, 6)))
    events = decode_to_router(encode(pack_changes(7, 41, changes)))
    assert (events.generation, events.sequence) == (7, 41)
    assert unpack_changes(events) == changes
    assert decode_to_head(encode(Watch())) == Watch()


@pytest.mark.parametrize(
    ("device", "held", "chunks"), [(0, 0, 1), (3, 4, 1), (2, 5, 2), (9, 9, 3), (0, 8, 2)]
)
def test_a_snapshot_passes_in_chunks(device, held, chunks):
    holdings = Holdings(keys(*range(device)), keys(*range(held)))
    parts = [decode_to_router(encode(part)) for part in pack_snapshot(1, 5, holdings, chunk_keys=4)]
    assert len(parts) == chunks and [part.last for part in parts] == [False] * (chunks - 1) + [True]
    whole = SnapshotParts()
    *before, last = [whole.add(part) for part in parts]
    assert before == [None] * (chunks - 1)
    assert list(last.device) == keys(*range(device)) and list(last.held) == keys(*range(held))


def test_a_snapshot_with_a_chunk_missing_is_dropped_and_the_next_is_not():
    holdings = Holdings([], keys(*range(10)))
    parts = list(pack_snapshot(1, 5, holdings, chunk_keys=4))
    later = list(pack_snapshot(1, 6, holdings, chunk_keys=4))
    whole = SnapshotParts()
    assert [whole.add(part) for part in (parts[0], parts[2])] == [None, None]
    assert [whole.add(part) for part in (parts[1], parts[2])] == [None, None]
    assert [whole.add(part) for part in (parts[0], later[1], later[2])] == [None, None, None]
    assert whole.add(parts[0]) is None
    assert [whole.add(part) for part in later[:2]] == [None, None]
    assert list(whole.add(later[2]).held) == keys(*range(10))
