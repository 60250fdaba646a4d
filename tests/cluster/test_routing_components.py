"""The directory with components beside full attention, against the rules of `storage.restore` on whole bitmaps."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratakv.cluster.events import SnapshotParts, pack_changes, pack_keys, pack_snapshot, unpack_changes
from stratakv.cluster.messages import ComponentRule, decode_to_router, encode
from stratakv.cluster.routing.book import RouteBook
from stratakv.cluster.routing.directory import Depth, Directory, Verdict
from stratakv.cluster.routing.route import RouteQuery
from stratakv.cluster.routing.usable import SideRule, usable
from stratakv.storage.residence import Changes, Holdings
from stratakv.storage.restore import EXACT, HitPolicy, Presence, Rule, restorable
from stratakv.storage.tiers import Component

PAGES = 12
CHAIN = [bytes([n]) * 32 for n in range(PAGES)]
SLIDING, RECURRENT = Component.SLIDING, Component.RECURRENT

bitmaps = st.lists(st.booleans(), min_size=PAGES, max_size=PAGES)
policies = st.one_of(
    st.just(EXACT),
    st.builds(HitPolicy, st.just(Rule.TRAILING), st.integers(1, PAGES)),
    st.just(HitPolicy(Rule.ALL_PAGES)),
)


# -- the rules alone


@given(st.integers(0, PAGES), st.lists(st.tuples(policies, bitmaps), max_size=4))
def test_usable_is_what_restore_says(held, components):
    rules = [SideRule(policy, bitmap.__getitem__) for policy, bitmap in components]
    whole = restorable(held, [Presence(policy, bitmap[:held]) for policy, bitmap in components])
    assert usable(held, rules) == whole.longest


def looked_up(rule, bitmap, held):
    seen = []

    def has(index):
        seen.append(index)
        return bitmap[index]

    return usable(held, [SideRule(rule, has)]), seen


def test_no_more_is_looked_up_than_can_move_the_boundary():
    assert looked_up(HitPolicy(Rule.TRAILING, 3), [True] * PAGES, 10) == (10, [9, 8, 7])
    state = [False, True] + [False] * 10
    assert looked_up(EXACT, state, 5) == (2, [4, 3, 2, 1, 1])


# -- the directory

sides = st.fixed_dictionaries({SLIDING: bitmaps, RECURRENT: bitmaps})
RULES = (ComponentRule(SLIDING, Rule.TRAILING, 3), ComponentRule(RECURRENT, Rule.EXACT))


def pages(bitmap):
    return tuple(key for key, there in zip(CHAIN, bitmap, strict=True) if there)


def expected(held, side, rules):
    presences = [Presence(rule.policy, side[rule.component][:held]) for rule in rules]
    return restorable(held, presences).longest


states = st.tuples(st.integers(0, PAGES), st.integers(0, PAGES), sides)


@given(st.lists(states, min_size=2, max_size=5), states, st.sampled_from([RULES, RULES[:1], RULES[1:], ()]))
def test_depth_moves_back_to_where_all_components_accept(history, other, rules):
    """Replica 1 goes through `history` by events after a snapshot, replica 4 stays at `other`."""
    directory = Directory()
    for replica in (1, 4):
        directory.set_rules(replica, rules)
    other = (min(other[:2]), max(other[:2]), other[2])
    side = {component: pages(bitmap) for component, bitmap in other[2].items()}
    directory.load_snapshot(4, 1, 0, Holdings(CHAIN[: other[0]], CHAIN[: other[1]], side))
    before = None
    for sequence, (one, two, side) in enumerate(history):
        now = (min(one, two), max(one, two), side)
        if before is None:
            load_over_the_wire(directory, now)
        else:
            events = decode_to_router(encode(pack_changes(1, sequence, changes(before, now))))
            assert directory.apply(1, 1, sequence, unpack_changes(events)) is Verdict.TAKEN
        before = now
        for length in (0, 5, PAGES):
            depths = directory.depth(CHAIN[:length])
            for replica, state in ((1, now), (4, other)):
                depth = expected(min(state[1], length), state[2], rules)
                assert depths[replica] == Depth(min(state[0], depth), depth)
        counted = directory.known[1].side
        assert all(counted[component] == sum(bitmap) for component, bitmap in now[2].items())
    directory.forget(1)
    directory.forget(4)
    assert len(directory) == 0 and not any(directory._side.values())


def load_over_the_wire(directory, state):
    device, held, side = state
    holdings = Holdings(CHAIN[:device], CHAIN[:held], {c: pages(bitmap) for c, bitmap in side.items()})
    parts = SnapshotParts()
    [*_, whole] = [
        parts.add(decode_to_router(encode(part))) for part in pack_snapshot(1, 0, holdings, chunk_keys=5)
    ]
    assert {component: tuple(keys) for component, keys in whole.side.items()} == {
        component: keys for component, keys in holdings.side.items() if keys
    }
    assert directory.load_snapshot(1, 1, 0, whole) is Verdict.TAKEN


def changes(before, now):
    def moved(one, other):
        return tuple(key for key in one if key not in other)

    side = {c: (pages(before[2][c]), pages(now[2][c])) for c in before[2]}
    device, held = (CHAIN[: before[0]], CHAIN[: now[0]]), (CHAIN[: before[1]], CHAIN[: now[1]])
    return Changes(
        device_added=moved(device[1], device[0]),
        device_removed=moved(device[0], device[1]),
        held_added=moved(held[1], held[0]),
        held_removed=moved(held[0], held[1]),
        side_added={c: moved(after, was) for c, (was, after) in side.items()},
        side_removed={c: moved(was, after) for c, (was, after) in side.items()},
    )


def test_a_change_of_a_side_component_alone_is_a_change():
    assert Changes(side_added={SLIDING: (CHAIN[0],)}) and Changes(side_removed={SLIDING: (CHAIN[0],)})
    assert not Changes(side_added={}, side_removed={})


def test_a_route_goes_where_the_state_is_and_not_where_only_the_pages_are():
    book = RouteBook("deepest_hit", 10, Random(1))
    for replica, checkpoint in ((0, 4), (1, 8)):
        book.directory.set_rules(replica, RULES[1:])
        side = {RECURRENT: (CHAIN[checkpoint - 1],)}
        book.directory.load_snapshot(replica, 1, 0, Holdings([], CHAIN[: PAGES - 3 * replica], side))
    route = book.route(RouteQuery(keys=pack_keys(CHAIN), tokens=1000, page_size=16, live=(0, 1)))
    assert (route.replica, route.host_tokens) == (1, 8 * 16)


def test_a_rule_that_contradicts_itself_is_refused():
    with pytest.raises(ValueError, match="TRAILING"):
        Directory().set_rules(0, [ComponentRule(SLIDING, Rule.TRAILING)])
