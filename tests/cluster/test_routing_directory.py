"""The directory against a naive oracle: it is always exactly a state that the head really was in."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stratakv.cluster.events import PackedKeys, pack_keys
from stratakv.cluster.routing.directory import Depth, Directory, Verdict
from stratakv.storage.residence import Changes, Holdings, ResidenceLog

REPLICAS = (0, 5)
BRANCHES, LENGTH = 2, 6


def key(*path):
    return bytes(path).ljust(32, b"\xff")


# Histories that share their first half: page n of branch b.
CHAINS = [
    [key(0, n) if n < LENGTH // 2 else key(1 + branch, n) for n in range(LENGTH)]
    for branch in range(BRANCHES)
]


class Head:
    """A replica that keeps both sets prefix-closed, with a log and every state it ever had."""

    def __init__(self, replica):
        self.replica = replica
        self.generation = 0
        self.restart()

    def restart(self):
        self.generation += 1
        self.sequence = 0
        self.device, self.held = set(), set()
        self.log = ResidenceLog()
        self.states = {0: (frozenset(), frozenset())}

    def compute(self, chain, length):
        """The first pages of a chain are on the device now, and so held."""
        for page in chain[:length]:
            if page not in self.held:
                self.held.add(page)
                self.log.note_held(page, True)
            if page not in self.device:
                self.device.add(page)
                self.log.note_device(page, True)

    def lose(self, chain, length):
        """Only the first pages of a chain stay held, and nothing after them of other chains through these."""
        for page in self._after(chain, length):
            if page in self.device:
                self.device.remove(page)
                self.log.note_device(page, False)
            if page in self.held:
                self.held.remove(page)
                self.log.note_held(page, False)

    def demote(self, chain, length):
        for page in self._after(chain, length):
            if page in self.device:
                self.device.remove(page)
                self.log.note_device(page, False)

    def _after(self, chain, length):
        gone = {page for other in CHAINS if other[:length] == chain[:length] for page in other[length:]}
        return sorted(gone, reverse=True)

    def drain(self):
        changes = self.log.drain()
        if not changes:
            return None
        self.sequence += 1
        self.states[self.sequence] = (frozenset(self.device), frozenset(self.held))
        return ("events", self.replica, self.generation, self.sequence, changes)

    def snapshot(self):
        holdings = Holdings(sorted(self.device), PackedKeys(pack_keys(sorted(self.held))))
        return ("snapshot", self.replica, self.generation, self.sequence, holdings)


def naive(pages, chain):
    return next((n for n, page in enumerate(chain) if page not in pages), len(chain))


replicas = st.sampled_from(REPLICAS)
chains = st.sampled_from(CHAINS)
lengths = st.integers(0, LENGTH)


class DirectoryMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.heads = {replica: Head(replica) for replica in REPLICAS}
        self.history = {}
        self.wire = []
        self.directory = Directory()
        self.remember()
        for head in self.heads.values():
            head.compute(CHAINS[0], LENGTH)
        self.settle()

    def remember(self):
        for head in self.heads.values():
            self.history[head.replica, head.generation] = head.states

    @rule(replica=replicas, chain=chains, length=lengths, what=st.sampled_from(["compute", "lose", "demote"]))
    def change(self, replica, chain, length, what):
        head = self.heads[replica]
        {"compute": head.compute, "lose": head.lose, "demote": head.demote}[what](chain, length)

    @rule(replica=replicas, chain=chains, length=lengths, what=st.sampled_from(["compute", "lose", "demote"]))
    def change_and_send(self, replica, chain, length, what):
        self.change(replica, chain, length, what)
        self.send(replica)

    @rule(replica=replicas)
    def send(self, replica):
        message = self.heads[replica].drain()
        if message:
            self.wire.append(message)

    @rule(replica=replicas)
    def answer_a_watch(self, replica):
        self.send(replica)
        self.wire.append(self.heads[replica].snapshot())

    @rule(replica=replicas)
    def restart(self, replica):
        self.heads[replica].restart()
        self.remember()

    @rule(replica=replicas)
    def bury(self, replica):
        # As the router does it: with the feed, what was on the wire is gone too.
        self.directory.forget(replica)
        self.wire = [message for message in self.wire if message[1] != replica]
        assert all(depth == Depth() for depth in self.depths(replica))

    @rule(count=st.sampled_from([1, 2, 1000]))
    def deliver(self, count):
        for message in self.wire[:count]:
            self.take(message)
        del self.wire[:count]

    @rule(data=st.data(), replica=replicas, what=st.sampled_from(["lose", "double", "swap"]))
    def deliver_over_a_bad_wire(self, data, replica, what):
        for length in data.draw(st.lists(lengths, max_size=3)):
            self.change_and_send(replica, CHAINS[0], LENGTH, "compute")
            self.change_and_send(replica, CHAINS[0], length, data.draw(st.sampled_from(["lose", "demote"])))
        if not self.wire:
            return
        places = st.integers(0, len(self.wire) - 1)
        message, to = self.wire[data.draw(places)], data.draw(places)
        if what != "double":
            self.wire.remove(message)
        if what != "lose":
            self.wire.insert(to, message)
        self.deliver(len(self.wire))

    @rule(replica=replicas)
    def beat(self, replica):
        """A beat that came in order tells of all that was lost before it."""
        head = self.heads[replica]
        self.wire = [message for message in self.wire if message[1] != replica]
        self.directory.announced(replica, head.generation, head.sequence)
        known = self.directory.known[replica]
        assert not known.exact or (known.generation, known.sequence) == (head.generation, head.sequence)

    @rule()
    def settle(self):
        """Whatever happened before: a watch makes all exact again."""
        for head in self.heads.values():
            self.send(head.replica)
        self.deliver(len(self.wire))
        for head in self.heads.values():
            self.take(head.snapshot())
            head.compute(CHAINS[0], 3)
            message = head.drain()
            if message:
                assert self.take(message) is Verdict.TAKEN
            known = self.directory.known[head.replica]
            assert known.exact and (known.generation, known.sequence) == (head.generation, head.sequence)

    def take(self, message):
        kind, replica, generation, sequence, content = message
        before = self.directory.known.get(replica)
        stood = before and (before.generation, before.sequence)
        if kind == "snapshot":
            verdict = self.directory.load_snapshot(replica, generation, sequence, content)
            assert verdict is not Verdict.GAP
        else:
            verdict = self.directory.apply(replica, generation, sequence, content)
            assert (verdict is Verdict.TAKEN) <= (stood == (generation, sequence - 1))
        after = self.directory.known[replica]
        assert stood is None or (after.generation, after.sequence) >= stood
        return verdict

    def depths(self, replica):
        return [self.directory.depth(chain).get(replica, Depth()) for chain in CHAINS]

    @invariant()
    def it_is_a_state_that_was(self):
        pages = set()
        for replica, known in self.directory.known.items():
            nothing = frozenset(), frozenset()
            states = {-1: nothing, **self.history[replica, known.generation]}
            device, held = states[known.sequence]
            pages |= held
            assert (known.device, known.held) == (len(device), len(held))
            for chain in CHAINS:
                for length in (0, 1, LENGTH - 2, LENGTH):
                    part = chain[:length]
                    assert self.directory.depth(part)[replica] == Depth(
                        naive(device, part), naive(held, part)
                    )
        assert len(self.directory) == len(pages)  # a page nobody holds has no entry


DirectoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestDirectory = DirectoryMachine.TestCase


def test_one_bisection_answers_for_all_replicas():
    directory, chain = Directory(), [n.to_bytes(32, "big") for n in range(4096)]
    expected = {}
    generator = random.Random(3)
    for replica in range(40):
        held = generator.choice([0, 1000, 4096])
        device = generator.randint(0, held)
        directory.load_snapshot(replica, 1, 0, Holdings(chain[:device], chain[:held]))
        expected[replica] = Depth(device, held)
    looked_up = []

    class Counted(list):
        def __getitem__(self, index):
            looked_up.append(index)
            return super().__getitem__(index)

    assert directory.depth(Counted(chain)) == expected
    assert len(looked_up) <= 2 * 12 * 43  # three depths held, and forty on the device
    assert directory.depth([]) == {replica: Depth() for replica in range(40)}


def test_a_new_generation_holds_nothing_until_its_snapshot():
    directory, chain = Directory(), CHAINS[0]
    directory.load_snapshot(1, 1, 9, Holdings(chain[:2], chain))
    directory.load_snapshot(2, 1, 0, Holdings([], chain[:4]))
    assert directory.apply(1, 2, 1, Changes(held_added=(chain[0],))) is Verdict.GAP
    assert directory.depth(chain) == {1: Depth(), 2: Depth(0, 4)}
    assert directory.apply(1, 1, 10, Changes()) is Verdict.STALE
    assert directory.load_snapshot(1, 1, 10, Holdings(chain, chain)) is Verdict.STALE
    assert directory.announced(1, 1, 11) is Verdict.STALE
    assert directory.load_snapshot(1, 2, 3, Holdings([], chain[:1])) is Verdict.TAKEN
    assert directory.announced(1, 2, 3) is Verdict.STALE
    assert directory.depth(chain)[1] == Depth(0, 1) and len(directory) == 4


def test_a_beat_shows_a_loss_that_no_event_has_shown():
    directory = Directory()
    directory.load_snapshot(1, 1, 4, Holdings([], []))
    assert directory.announced(1, 1, 4) is Verdict.STALE and directory.known[1].exact
    assert directory.announced(1, 1, 5) is Verdict.GAP and not directory.known[1].exact
    assert directory.apply(1, 1, 5, Changes(held_added=(key(1),))) is Verdict.GAP and len(directory) == 0
