"""How a head answers routers that watch its pages."""

import time

from endpoint_fakes import DEADLINE, generate, open_endpoint

from stratakv.actors.worker.endpoint import Emission
from stratakv.cluster.events import PackedKeys, PageEvents, Snapshot, Watch
from stratakv.cluster.messages import Beat, Delta, Step, decode_to_router
from stratakv.cluster.settings import WireSettings
from stratakv.storage.residence import Changes, Holdings


def key(n):
    return n.to_bytes(32, "big")


def added(*numbers):
    return Changes(held_added=tuple(key(n) for n in numbers))


def test_a_watch_is_answered_by_a_snapshot_and_then_events_in_sequence(serve, inbox):
    endpoint = serve()
    router, gateway = serve.client(endpoint), serve.client(endpoint)
    gateway.send(generate("a"))
    who = inbox.next_request()[0]
    endpoint.deliver_events(added(1))  # before anybody watched: counted, not sent
    router.send(Watch())
    watcher = inbox.watched.get(timeout=DEADLINE)
    endpoint.deliver_events(added(2))
    endpoint.deliver_snapshot(watcher, Holdings([], [key(1), key(2)]))
    endpoint.deliver_events(Changes())  # nothing: no event
    endpoint.deliver_events(added(3, 4))
    endpoint.deliver(1, [Emission(who, Delta(id="a", tokens=(1,)))])
    snapshot, events = router.news(), router.news()
    assert (snapshot.generation, snapshot.sequence, snapshot.chunk, snapshot.last) == (7, 2, 0, True)
    assert list(PackedKeys(snapshot.held)) == [key(1), key(2)] and snapshot.device == b""
    assert (events.generation, events.sequence) == (7, 3)
    assert list(PackedKeys(events.held_added)) == [key(3), key(4)]
    assert router.receive(Beat, decode_to_router).sequence == 3
    assert gateway.receive((Step, Snapshot, PageEvents)).number == 1  # a gateway hears nothing of pages


def test_a_watch_that_waits_for_its_answer_is_not_asked_twice(serve, inbox):
    endpoint = serve()
    router = serve.client(endpoint)
    for _ in range(3):
        router.send(Watch())
    router.send(generate("a"))
    inbox.next_request()
    watcher = inbox.watched.get(timeout=DEADLINE)
    assert inbox.watched.empty()
    endpoint.deliver_snapshot(watcher, Holdings([], []))
    endpoint.deliver_snapshot(watcher, Holdings([], []))  # nobody asked for this one
    endpoint.deliver_events(added(1))
    assert [type(router.news()) for _ in range(2)] == [Snapshot, PageEvents]
    router.send(Watch())
    endpoint.deliver_snapshot(inbox.watched.get(timeout=DEADLINE), Holdings([], []))
    assert router.news().sequence == 1


def test_a_watcher_that_falls_behind_must_watch_again(serve, inbox):
    endpoint = serve(WireSettings(backlog=10))
    router = serve.client(endpoint, hwm=1)
    router.send(Watch())
    endpoint.deliver_snapshot(inbox.watched.get(timeout=DEADLINE), Holdings([], []))
    sent, bulk = 0, tuple(range(30_000))
    until = time.monotonic() + DEADLINE
    while endpoint._watchers.following() or sent < 20:
        assert time.monotonic() < until
        sent += 1
        endpoint.deliver_events(added(*bulk))
        while endpoint._outbox:
            time.sleep(0.001)
    assert router.news().sequence == 0
    sequence = 0
    while (
        True
    ):  # what was sent before the loss comes without a gap; then a beat shows that something is missing
        message = router.receive((PageEvents, Beat), decode_to_router)
        if isinstance(message, PageEvents):
            assert message.sequence == sequence + 1
            sequence = message.sequence
        elif message.sequence > sequence:
            break
    assert message.sequence == sent > sequence
    router.send(Watch())
    endpoint.deliver_snapshot(inbox.watched.get(timeout=DEADLINE), Holdings([], []))
    assert router.news().sequence == sent
    endpoint.deliver_events(added(1))
    assert router.news().sequence == sent + 1


def test_a_watcher_that_vanishes_disturbs_nobody(serve, inbox):
    endpoint = serve()
    router, other = serve.client(endpoint), serve.client(endpoint)
    for client in (router, other):
        client.send(Watch())
        endpoint.deliver_snapshot(inbox.watched.get(timeout=DEADLINE), Holdings([], []))
        assert client.news().sequence == 0
    router.close()
    for number in range(1, 50):
        endpoint.deliver_events(added(number))
        assert other.news().sequence == number
    assert endpoint.alive


def test_an_engine_that_cannot_take_a_watch_fails_that_watch_only(serve, inbox, caplog):
    endpoint = serve()
    router = serve.client(endpoint)
    inbox.broken = True
    router.send(Watch())
    router.send(generate("a"))
    assert router.receive(Step).deltas[0].failure.code == "server_error"
    inbox.broken = False
    router.send(Watch())
    assert inbox.watched.get(timeout=DEADLINE) and endpoint.alive
    assert "could not be given to the engine" in caplog.text


def test_the_advertised_host_is_the_one_clients_are_told(inbox):
    for host, shown in (("10.1.2.3", "10.1.2.3"), ("fd00::1", "[fd00::1]"), ("node-7.local", "node-7.local")):
        endpoint = open_endpoint(inbox, WireSettings(bind_host="0.0.0.0", advertise_host=host))
        name, _, port = endpoint.address.removeprefix("tcp://").rpartition(":")
        assert name == shown and 0 < int(port) < 65536
        endpoint.close()
