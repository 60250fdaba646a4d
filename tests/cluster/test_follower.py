"""What replicas did, as metrics: it adds up over beats, generations and gateways that look in between."""

from hypothesis import given
from hypothesis import strategies as st

from stratakv.cluster import tally
from stratakv.cluster.follower import CountFollower
from stratakv.cluster.messages import Beat, HierarchyCounts, decode_to_gateway, encode
from stratakv.cluster.tally import Tally

COUNTERS = (
    "loaded", "backed_up", "prefetched", "prefetch_lost", "written", "write_failed", "write_dropped", "left_device",
    "left_host", "retractions",
)  # fmt: skip
REASONS = ("evicted", "no host room")

growths = st.fixed_dictionaries({name: st.integers(0, 50) for name in (*COUNTERS, *REASONS)})
steps = st.lists(
    st.tuples(st.integers(0, 1), growths, st.booleans(), st.booleans(), st.integers(0, 9)), max_size=15
)


def message(grown, backlog):
    lost = {reason: grown[reason] for reason in REASONS if grown[reason]}
    return HierarchyCounts(**{name: grown[name] for name in COUNTERS}, lost=lost, write_backlog=backlog)


def by_family(counts):
    sums = {}
    for series, value in counts:
        sums[series.family.name, series.values[0]] = (
            sums.get((series.family.name, series.values[0]), 0) + value
        )
    return sums


@given(steps)
def test_the_sums_are_what_the_replicas_did(steps):
    counts = Tally()
    follower = CountFollower(counts)
    generations, now = {0: 1, 1: 1}, {0: {}, 1: {}}
    done: dict[int, dict[str, int]] = {0: {}, 1: {}}
    last = {}
    for replica, growth, restarts, stale, backlog in steps:
        if restarts:
            generations[replica] += 1
            now[replica] = {}
        for name, more in growth.items():
            now[replica][name] = now[replica].get(name, 0) + more
            done[replica][name] = done[replica].get(name, 0) + more
        follower.heard(replica, generations[replica], message(now[replica], backlog))
        follower.heard(
            replica, generations[replica], message(now[replica], backlog)
        )  # told twice, counted once
        if stale:
            follower.heard(replica, generations[replica] - 1, message(dict.fromkeys(growth, 999), 99))
        last[replica] = backlog
    sums = by_family(counts)
    for replica, backlog in last.items():
        did, name = done[replica], str(replica)
        moved = did["loaded"] + did["backed_up"] + did["prefetched"] + did["written"]
        assert sums[tally.MOVED_PAGES.name, name] == moved
        lost = did["prefetch_lost"] + did["write_failed"] + did["write_dropped"]
        assert sums[tally.UNMOVED_PAGES.name, name] == lost
        assert sums[tally.LEFT_PAGES.name, name] == did["left_device"] + did["left_host"]
        assert sums.get((tally.LOST_PAGES.name, name), 0) == did["evicted"] + did["no host room"]
        assert sums[tally.RETRACTIONS.name, name] == did["retractions"]
        assert sums[tally.WRITE_BACKLOG.name, name] == backlog


def test_a_replica_that_is_away_has_no_backlog_and_what_it_did_stays():
    counts = Tally()
    follower = CountFollower(counts)
    follower.heard(3, 1, HierarchyCounts(loaded=5, write_backlog=7))
    follower.away(3)
    assert by_family(counts)[tally.WRITE_BACKLOG.name, "3"] == 0
    assert by_family(counts)[tally.MOVED_PAGES.name, "3"] == 5


@given(growths, st.integers(0, 9))
def test_counts_pass_the_wire_with_a_beat(grown, backlog):
    beat = Beat(4, 9, 1, 2, 3, message(grown, backlog))
    assert decode_to_gateway(encode(beat)) == beat


def test_a_beat_without_counts_tells_zeros():
    assert decode_to_gateway(encode(Beat(4, 9, 1, 2))).counts == HierarchyCounts()
