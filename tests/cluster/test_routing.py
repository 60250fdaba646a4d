"""Policies, receipts and the route book."""

from collections import Counter
from random import Random

import pytest
from pydantic import ValidationError

from stratakv.cluster.events import pack_keys
from stratakv.cluster.messages import Beat, Usage
from stratakv.cluster.routing.book import RouteBook, RouteCount
from stratakv.cluster.routing.policies import ROUTE_POLICIES, Candidate
from stratakv.cluster.routing.route import Actual, Reason, RouteQuery
from stratakv.cluster.settings import RouterSettings, WireSettings
from stratakv.storage.registry import UnknownName
from stratakv.storage.residence import Holdings

CHAIN = [n.to_bytes(32, "big") for n in range(100)]


def policy(name):
    return ROUTE_POLICIES.get(name)(Random(1))


def candidate(replica, device=0, held=0, load=0):
    return Candidate(replica, device, held, load)


def chosen(name, *candidates, times=100):
    asked = policy(name)
    return Counter(asked.choose(candidates) for _ in range(times))


def test_the_deepest_hit_wins_whatever_its_load():
    choice = policy("deepest_hit").choose([candidate(0, 8, 8), candidate(1, 0, 9, load=50), candidate(2)])
    assert choice == (1, Reason.DEEPEST_HIT)


def test_equal_hits_go_to_the_least_loaded_then_to_the_device_then_to_any():
    equal = [candidate(0, 9, 9, load=2), candidate(1, 1, 9, load=1), candidate(2, 3, 9, load=1)]
    assert policy("deepest_hit").choose([*equal, candidate(3)]) == (2, Reason.EQUAL_HITS)
    drawn = chosen("deepest_hit", candidate(0, 5, 9), candidate(1, 5, 9), candidate(2, 4, 9), candidate(3))
    assert set(drawn) == {(0, Reason.EQUAL_HITS), (1, Reason.EQUAL_HITS)} and min(drawn.values()) > 20


def test_without_a_hit_load_decides():
    choice = policy("deepest_hit").choose([candidate(0, load=3), candidate(1, load=2), candidate(2, load=3)])
    assert choice == (1, Reason.NO_HIT)
    assert len(chosen("deepest_hit", candidate(0), candidate(1))) == 2


def test_least_loaded_looks_at_nothing_but_load():
    loads = [candidate(0, 9, 9, load=2), candidate(1, load=1), candidate(2, load=1)]
    assert {choice.replica for choice in chosen("least_loaded", *loads)} == {1, 2}


def test_round_robin_takes_turns_also_when_replicas_come_and_go():
    asked, turns = policy("round_robin"), []
    for live in [(0, 1, 3), (0, 1, 3), (0, 1, 3), (0, 1, 3), (0, 3), (0, 1, 3), (1,), (0, 1, 3)]:
        turns.append(asked.choose([candidate(replica, held=9 * replica) for replica in live]).replica)
    assert turns == [0, 1, 3, 0, 3, 0, 1, 3]


def test_an_unknown_policy_is_an_error_that_names_the_setting_and_the_known_ones():
    for make in (lambda: RouteBook("fastest", 1, Random(1)), lambda: RouterSettings(policy="fastest")):
        with pytest.raises((UnknownName, ValidationError)) as error:
            make()
        for word in ("router.policy", "fastest", "deepest_hit, least_loaded, round_robin"):
            assert word in str(error.value)


def test_a_wildcard_bind_needs_a_host_to_advertise():
    with pytest.raises(ValidationError, match=r"set wire\.advertise_host"):
        WireSettings(bind_host="0.0.0.0")
    assert WireSettings(bind_host="0.0.0.0", advertise_host="10.0.0.7").advertise_host == "10.0.0.7"


# -- the book


def book(policy="deepest_hit", receipts=100):
    made = RouteBook(policy, receipts, Random(1))
    made.directory.load_snapshot(0, 1, 0, Holdings(CHAIN[:2], CHAIN[:6]))
    made.directory.load_snapshot(1, 1, 0, Holdings(CHAIN[:4], CHAIN[:4]))
    return made


def query(pages=10, tokens=None, live=(0, 1), page_size=16):
    count = pages * page_size if tokens is None else tokens
    return RouteQuery(keys=pack_keys(CHAIN[:pages]), tokens=count, page_size=page_size, live=live)


def test_a_route_says_what_it_expects_by_tier():
    routes = book()
    route = routes.route(query())
    assert (route.replica, route.device_tokens, route.host_tokens) == (0, 32, 64)
    assert (route.policy, route.reason) == ("deepest_hit", Reason.DEEPEST_HIT)
    assert routes.counts == {RouteCount(0, Reason.DEEPEST_HIT): 1}


def test_the_last_token_is_never_expected_from_a_cache():
    assert (
        book().route(query(pages=4, live=(0,))).host_tokens == 16
    )  # of 64 tokens 48 are usable, 32 of them on the device
    assert book().route(query(pages=6, tokens=97)).host_tokens == 64
    for tokens in (0, 1):
        assert book().route(query(pages=0, tokens=tokens)).reason is Reason.NO_HIT


def test_only_live_replicas_are_chosen_known_or_not():
    routes = book()
    assert routes.route(query(live=(1,))).replica == 1
    route = routes.route(query(live=(7,)))
    assert (route.replica, route.device_tokens, route.reason) == (7, 0, Reason.ONLY_REPLICA)
    with pytest.raises(ValueError, match="no live replica"):
        routes.route(query(live=()))
    with pytest.raises(ValueError, match="not whole page keys"):
        routes.route(RouteQuery(keys=b"x", tokens=100, page_size=16, live=(0,)))


def test_load_is_the_last_beat_and_the_routes_since():
    routes = book("least_loaded")
    for replica in (0, 1):
        routes.heard(replica, Beat(1, 5, waiting=replica, running=1))
    taken = [routes.route(query()).replica for _ in range(9)]
    assert taken[0] == 0 and Counter(taken) == {0: 5, 1: 4}
    assert [routes.load(replica) for replica in (0, 1, 2)] == [6, 6, 0]
    routes.heard(0, Beat(1, 6, waiting=2, running=1))
    assert [routes.load(replica) for replica in (0, 1)] == [3, 6]
    routes.forget(1)
    assert routes.load(1) == 0 and routes.route(query(live=(0, 1))).host_tokens == 0


def test_receipts_hold_predicted_and_actual_of_the_last_routes():
    routes = book(receipts=3)
    made = [routes.route(query()) for _ in range(5)]
    assert len(routes.receipts) == 3 and routes.receipts.get(made[1].receipt) is None
    usage = Usage(prompt=160, device=32, host=48, computed=80)
    for route in (made[0], made[3], made[3]):  # forgotten; told; told twice
        routes.report(Actual(route.receipt, usage))
    assert routes.receipts.get(made[3].receipt).actual == usage
    assert routes.receipts.get(made[4].receipt).actual is None
    assert (routes.promised_tokens, routes.delivered_tokens, routes.unknown_receipts) == (96, 80, 2)
    assert [receipt.route for receipt in routes.receipts.latest(2)] == [made[4], made[3]]


def test_a_router_knows_no_receipt_of_the_one_before_it():
    before, after = RouteBook("deepest_hit", 9, Random(1)), RouteBook("deepest_hit", 9, Random(2))
    old = [before.route(query()) for _ in range(5)]
    for _ in range(5):
        after.route(query())
    for route in old:
        after.report(Actual(route.receipt, Usage(prompt=160)))
    assert after.unknown_receipts == 5
