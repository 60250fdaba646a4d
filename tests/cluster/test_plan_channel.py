"""The way of a plan to the other ranks: in order, of the right generation, or not at all."""

import threading
import time

import msgspec
import pytest

from stratakv.cluster.curve import new_key_pair
from stratakv.cluster.plan import Plan, Row
from stratakv.cluster.plan_channel import ChannelError, HeadLost, PlanReceiver, PlanSender
from stratakv.storage.moves import (
    Area,
    Copy,
    Cut,
    Direction,
    PageStamp,
    Part,
    Read,
    Release,
    Restore,
    Snapshot,
    Write,
)
from stratakv.storage.tiers import Component

PATIENT = 60.0
STAMP = PageStamp(b"k" * 32, b"", 1, b"n" * 32)
ORDERS = (
    Copy(1, Direction.LOAD, Component.FULL, (1, 2), (3, 4)),
    Copy(2, Direction.BACKUP, Component.FULL, (1,), (2,), (STAMP,)),
    Snapshot(3, (4, 5)),
    Restore((4, 5), 2),
    Read(5, (Part(Component.RECURRENT, (6,), (STAMP,)), Part(Component.FULL, (7,), (STAMP,)))),
    Write(6, (Part(Component.FULL, (8,), (STAMP,)),)),
    Cut(5),
    Release(Area.WRITE, 6),
)


@pytest.fixture
def opened():
    """Makes a sender and receivers, and closes them."""
    made = []

    class Opened:
        def sender(self, ranks=2, generation=3, interval=0.05):
            made.append(PlanSender(generation, ranks, interval))
            return made[-1]

        def receiver(self, rendezvous, rank=1, silence=PATIENT):
            made.append(PlanReceiver(rendezvous, rank, silence))
            return made[-1]

        def pair(self, **options):
            sender = self.sender(**options)
            receiver = self.receiver(sender.rendezvous(0))
            receiver.hello()
            sender.await_ranks(PATIENT)
            return sender, receiver

    yield Opened()
    for each in reversed(made):
        each.close()


def test_plans_arrive_whole_and_in_order(opened):
    sender = opened.sender(ranks=3)
    receivers = [opened.receiver(sender.rendezvous(0), rank) for rank in (1, 2)]
    for receiver in receivers:
        receiver.hello()
    sender.await_ranks(PATIENT)
    plans = [Plan(n, ORDERS, (Row((1, 2, n), 4, (0, 9), True),)) for n in range(1, 20)]
    for plan in plans:
        sender.send(plan)
    for receiver in receivers:
        assert [receiver.receive() for _ in plans] == plans


def test_an_idle_channel_waits_beyond_the_silence_that_would_end_it(opened):
    sender = opened.sender()
    receiver = opened.receiver(sender.rendezvous(0), silence=1.0)
    receiver.hello()
    sender.await_ranks(PATIENT)
    got = []
    thread = threading.Thread(target=lambda: got.append(receiver.receive()))
    thread.start()
    time.sleep(2.5)
    assert thread.is_alive()
    sender.send(Plan(1))
    thread.join(PATIENT)
    assert got == [Plan(1)]


def test_a_stop_ends_the_wait(opened):
    sender, receiver = opened.pair()
    sender.send(Plan(1))
    sender.close()
    assert receiver.receive() == Plan(1)
    assert receiver.receive() is None


def test_a_rank_that_is_closed_waits_no_longer(opened):
    _, receiver = opened.pair()
    receiver.stop()
    assert receiver.receive() is None


def test_a_head_that_has_gone_silent_is_given_up(opened):
    sender = opened.sender(interval=3600)  # it beats once
    receiver = opened.receiver(sender.rendezvous(0), silence=0.3)
    with pytest.raises(HeadLost, match=r"rank 1 has heard nothing of its head"):
        receiver.receive()


def test_a_gap_is_noticed_at_either_end(opened):
    sender, receiver = opened.pair()
    sender.send(Plan(1))
    with pytest.raises(ChannelError, match="plan 3 was to be sent after plan 1"):
        sender.send(Plan(3))
    sender._number = 2  # plan 2 is lost on the way
    sender.send(Plan(3))
    assert receiver.receive() == Plan(1)
    with pytest.raises(ChannelError, match="rank 1 got plan 3 after plan 1"):
        receiver.receive()


def test_another_generation_is_refused_at_either_end(opened):
    sender = opened.sender(generation=3)
    late = opened.receiver(msgspec.structs.replace(sender.rendezvous(0), generation=2))
    late.hello()
    with pytest.raises(ChannelError, match="rank 1 came with generation 2"):
        sender.await_ranks(PATIENT)
    sender.send(Plan(1))
    with pytest.raises(ChannelError, match="of generation 2 and got a message of generation 3"):
        late.receive()


def test_missing_ranks_are_named(opened):
    sender = opened.sender(ranks=4)
    opened.receiver(sender.rendezvous(0), rank=2).hello()
    until, missing = time.monotonic() + PATIENT, "1, 2, 3"
    while missing == "1, 2, 3" and time.monotonic() < until:  # rank 2 may take a while to connect
        with pytest.raises(ChannelError, match="of this replica did not come") as raised:
            sender.await_ranks(0.2)
        missing = str(raised.value).removeprefix("rank ").partition(" of this replica")[0]
    assert missing == "1, 3"


def test_who_has_another_key_is_not_let_in(opened):
    sender = opened.sender()
    stranger = msgspec.structs.replace(sender.rendezvous(0), rank_keys=new_key_pair())
    opened.receiver(stranger).hello()
    with pytest.raises(ChannelError, match="rank 1 of this replica did not come"):
        sender.await_ranks(1.0)


def test_a_rank_that_is_gone_is_named(opened):
    sender, receiver = opened.pair()
    receiver.close()
    with pytest.raises(ChannelError, match="rank 1 of this replica is gone"):
        for number in range(1, 1000):
            sender.send(Plan(number))
            time.sleep(0.01)


def test_garbage_is_an_error(opened):
    sender, receiver = opened.pair()
    sender._plans.send_multipart([b"rank-1", b"\xc1"])
    with pytest.raises(msgspec.DecodeError):
        receiver.receive()
