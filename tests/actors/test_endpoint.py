import threading
import time

import msgspec
import numpy as np
import pytest
import zmq
from endpoint_fakes import CARD, DEADLINE, Client, generate, open_endpoint

from stratakv.actors.worker.endpoint import Emission, Load
from stratakv.actors.worker.intake import Refused, page_keys
from stratakv.cluster.curve import new_key_pair
from stratakv.cluster.messages import (
    Abort,
    Beat,
    Delta,
    FinishReason,
    Generate,
    Ping,
    Sampling,
    Step,
    encode,
)
from stratakv.cluster.settings import HeartbeatSettings, WireSettings
from stratakv.storage.keys import chain, namespace_seed


def test_a_request_reaches_the_engine_with_keys_chained_from_its_tokens(serve, inbox):
    client = serve.client(serve())
    client.send(generate(extra_key="tenant", cache_salt="salt"))
    _, request, keys = inbox.next_request()
    assert request == generate(extra_key="tenant", cache_salt="salt")
    assert keys == chain(list(range(10)), 4, namespace_seed("tenant", "salt")) and len(keys) == 2


def test_one_message_per_step_and_client(serve, inbox):
    endpoint = serve()
    one, other = serve.client(endpoint), serve.client(endpoint)
    for id in ("a", "b"):
        one.send(generate(id))
    other.send(generate("a"))
    submitted = [inbox.next_request() for _ in range(3)]
    deltas = [
        Emission(client, Delta(id=request.id, tokens=(n,)))
        for n, (client, request, _) in enumerate(submitted)
    ]
    endpoint.deliver(41, deltas)
    endpoint.deliver(42, deltas)
    for number in (41, 42):
        step = one.receive(Step)
        assert (step.generation, step.number) == (7, number)
        assert sorted(delta.id for delta in step.deltas) == ["a", "b"]
        step = other.receive(Step)
        assert step.number == number and [delta.id for delta in step.deltas] == ["a"]


def test_beats_tell_load_and_step(serve):
    endpoint = serve()
    client = serve.client(endpoint)
    client.send(Ping())
    assert client.receive(Beat) == Beat(7, 0, waiting=4, running=3)
    endpoint.deliver(12, [])
    while client.receive(Beat).step != 12:
        pass


def test_an_aborted_request_is_told_nothing_more(serve, inbox):
    endpoint = serve()
    client = serve.client(endpoint)
    client.send(generate("a"))
    client.send(generate("b"))
    client.send(Abort("a"))
    who, _, _ = inbox.next_request()
    inbox.next_request()
    assert inbox.next_abort() == (who, "a")
    endpoint.deliver(
        1, [Emission(who, Delta(id="a", tokens=(1,))), Emission(who, Delta(id="b", tokens=(2,)))]
    )
    assert [delta.id for delta in client.receive(Step).deltas] == ["b"]


@pytest.mark.parametrize(
    ("request_", "param", "text"),
    [
        (Generate(id="a", tokens=b"123", sampling=Sampling(max_tokens=1)), "prompt", "not whole u32"),
        (generate(tokens=[]), "prompt", "no token"),
        (generate(tokens=[1, 1000]), "prompt", "ids are 0 to 999"),
        (generate(max_tokens=0), "max_tokens", "at least 1"),
        (generate(max_tokens=1_999_991), "max_tokens", "ask for 1999990 or fewer"),
        (generate(tokens=np.zeros(2_000_000)), "prompt", "with its output"),
        (
            msgspec.structs.replace(generate(), sampling=Sampling(max_tokens=1, temperature=-1.0)),
            "temperature",
            "0",
        ),
        (msgspec.structs.replace(generate(), sampling=Sampling(max_tokens=1, top_p=0.0)), "top_p", "above 0"),
        (msgspec.structs.replace(generate(), sampling=Sampling(max_tokens=1, top_k=-1)), "top_k", "no limit"),
        (generate(priority=9), "priority", "-8 to 8"),
        (generate(priority=-9), "priority", "-8 to 8"),
    ],
)
def test_a_request_that_cannot_run_is_refused_by_field(request_, param, text):
    with pytest.raises(Refused, match=text) as refused:
        page_keys(request_, CARD)
    assert refused.value.failure.param == param


def test_a_refusal_goes_back_as_a_failure(serve, inbox):
    client = serve.client(serve())
    client.send(Generate(id="bad", tokens=b"123", sampling=Sampling(max_tokens=1)))
    (delta,) = client.receive(Step).deltas
    assert (delta.id, delta.failure.param) == ("bad", "prompt")
    client.send(generate("good"))
    assert inbox.next_request()[1].id == "good"


def test_malformed_messages_are_logged_and_dropped(serve, inbox, caplog):
    endpoint = serve()
    client = serve.client(endpoint)
    client.send(b"")
    client.send(b"\xff\xff not msgpack")
    client.send(msgspec.msgpack.encode({"type": "unheard of"}))
    client.send(msgspec.msgpack.encode({"type": "generate", "id": 3}))
    client.socket.send_multipart([encode(Ping()), encode(Ping())])
    client.send(encode(generate("a"))[:-3])
    client.send(generate("good"))
    assert inbox.next_request()[1].id == "good"
    assert endpoint.alive
    assert sum("malformed" in record.message for record in caplog.records) == 6


def test_an_oversized_message_costs_its_sender_the_connection_and_nobody_else(serve, inbox):
    endpoint = serve(WireSettings(max_message=10_000))
    good, bad = serve.client(endpoint), serve.client(endpoint)
    bad.send(generate("first"))
    who, _, _ = inbox.next_request()
    bad.send(generate("big", range(3000)))
    assert inbox.next_abort() == (who, "first")
    good.send(generate("good"))
    assert inbox.next_request()[1].id == "good"


def test_a_million_tokens_pass(serve, inbox):
    client = serve.client(serve())
    client.send(generate(tokens=np.arange(1_000_000) % 1000))
    _, request, keys = inbox.next_request()
    assert len(request.tokens) == 4_000_000 and len(keys) == 250_000


def test_a_live_id_sent_again_is_dropped(serve, inbox):
    client = serve.client(serve())
    client.send(generate("a"))
    client.send(generate("a"))
    client.send(generate("b"))
    assert [inbox.next_request()[1].id for _ in range(2)] == ["a", "b"]


def test_an_engine_that_raises_fails_the_request_and_not_the_thread(serve, inbox):
    client = serve.client(serve())
    inbox.broken = True
    client.send(generate("a"))
    assert client.receive(Step).deltas[0].failure.code == "server_error"
    inbox.broken = False
    client.send(generate("a"))
    assert inbox.next_request()[1].id == "a"


def test_a_strangers_key_is_not_admitted(serve, inbox, caplog):
    endpoint = serve()
    stranger, friend = serve.client(endpoint, keys=new_key_pair()), serve.client(endpoint)
    stranger.send(generate("stranger"))
    monitor = stranger.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    assert monitor.poll(DEADLINE * 1000)
    friend.send(generate("friend"))
    assert inbox.next_request()[1].id == "friend"
    assert inbox.submitted.empty()
    assert "its key is not the gateways' key" in caplog.text


def test_a_client_without_curve_is_not_admitted(serve, inbox):
    endpoint = serve()
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    socket.connect(endpoint.address)
    socket.send(encode(generate("plain")))
    assert monitor.poll(DEADLINE * 1000)
    serve.client(endpoint).send(generate("friend"))
    assert inbox.next_request()[1].id == "friend"
    context.destroy(linger=0)


def test_requests_of_a_client_that_vanishes_are_aborted(serve, inbox):
    endpoint = serve()
    client = serve.client(endpoint)
    client.send(generate("a"))
    client.send(generate("b"))
    who = inbox.next_request()[0]
    inbox.next_request()
    client.close()
    assert {inbox.next_abort(), inbox.next_abort()} == {(who, "a"), (who, "b")}
    # What the engine still emits for it goes nowhere.
    endpoint.deliver(1, [Emission(who, Delta(id="a", tokens=(1,)))])
    serve.client(endpoint).send(generate("c"))
    assert inbox.next_request()[1].id == "c" and endpoint.alive


def test_requests_of_a_silent_client_are_aborted_and_it_is_told(serve, inbox):
    endpoint = serve(heartbeat=HeartbeatSettings(interval=0.05, timeout=0.3))
    client = serve.client(endpoint)
    client.send(generate("a"))
    who = inbox.next_request()[0]
    assert inbox.next_abort() == (who, "a")  # connected, but it sends no ping
    (delta,) = client.receive(Step).deltas
    assert delta.id == "a" and delta.failure.code == "gateway_lost"
    client.send(generate("b"))
    assert inbox.next_request()[1].id == "b"


def test_a_slow_client_loses_its_requests_and_blocks_nobody(serve, inbox):
    endpoint = serve(WireSettings(backlog=10))
    slow, quick = serve.client(endpoint, hwm=1), serve.client(endpoint)
    slow.send(generate("slow"))
    slow_id = inbox.next_request()[0]
    quick.send(generate("quick"))
    quick_id = inbox.next_request()[0]
    bulk = tuple(range(100_000))
    until = time.monotonic() + DEADLINE
    sent = 0
    while inbox.aborted.empty() and time.monotonic() < until:
        sent += 1
        endpoint.deliver(sent, [Emission(slow_id, Delta(id="slow", tokens=bulk))])
        endpoint.deliver(sent, [Emission(quick_id, Delta(id="quick", tokens=(1,)))])
        assert quick.receive(Step).number == sent
    assert inbox.next_abort() == (slow_id, "slow")
    # Once it reads again it learns that its request has ended.
    while (delta := slow.receive(Step).deltas[0]).failure is None:
        pass
    assert delta.failure.code == "gateway_lost"


def test_the_last_delta_is_owed_when_it_could_not_be_sent(serve, inbox):
    endpoint = serve(WireSettings(backlog=10))
    slow = serve.client(endpoint, hwm=1)
    ids = [str(n) for n in range(300)]
    for id in ids:
        slow.send(generate(id))
    clients = {inbox.next_request()[0] for _ in ids}
    bulk = tuple(range(100_000))
    for number, id in enumerate(ids):
        # Each step ends one request, so the step that does not fit ends one too.
        last = Delta(id=id, tokens=bulk, finish=FinishReason.STOP)
        endpoint.deliver(number, [Emission(client, last) for client in clients])
    inbox.next_abort()
    ended = []
    while len(ended) < len(ids):
        ended += [delta.id for delta in slow.receive(Step).deltas if delta.finish or delta.failure]
    assert sorted(ended) == sorted(ids)


def test_the_last_words_of_a_client_that_is_gone_start_nothing(inbox):
    gate, stalled = threading.Event(), threading.Event()

    def load():
        stalled.set()
        gate.wait(DEADLINE)
        return Load(0, 0)

    endpoint = open_endpoint(inbox, load=load)
    gate.set()
    endpoint.start()
    client = Client(endpoint)
    handshake = client.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    assert handshake.poll(DEADLINE * 1000)
    gate.clear()
    stalled.clear()
    assert stalled.wait(DEADLINE)  # the thread does not read now
    client.send(generate("a"))
    client.send(Generate(id="bad", tokens=b"123", sampling=Sampling(max_tokens=1)))
    client.context.destroy(linger=5000)
    gate.set()
    friend = Client(endpoint)
    friend.send(generate("b"))
    while (got := inbox.next_request())[1].id != "b":
        # Read before the loss was known; then it must have been aborted since.
        assert inbox.next_abort() == (got[0], "a")
    assert endpoint.alive
    friend.close()
    endpoint.close()


def test_close_ends_the_thread_and_frees_the_port(serve, inbox):
    endpoint = serve()
    assert endpoint.alive
    endpoint.close()
    assert not endpoint.alive
    endpoint.deliver(1, [])  # an engine that has not stopped yet
    endpoint.close()
    host, port = endpoint.address.removeprefix("tcp://").split(":")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind(f"tcp://{host}:{port}")


def test_an_endpoint_that_was_never_started_closes(inbox):
    endpoint = open_endpoint(inbox)
    endpoint.close()
    assert not endpoint.alive


def test_a_host_that_cannot_be_bound_is_an_error_at_once(inbox):
    with pytest.raises(zmq.ZMQError, match=r"192\.0\.2\.1"):
        open_endpoint(inbox, WireSettings(bind_host="192.0.2.1"))
