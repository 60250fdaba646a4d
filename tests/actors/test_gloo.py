"""The collective of progress vectors and how its ranks meet, with real processes and tiny tensors."""

import time

import pytest
from replica import processes

from stratakv.actors.worker.gloo import GlooTeam, RankMissing, connect_store, open_store
from stratakv.actors.worker.team import Alone, agree
from stratakv.cluster.agreement import Divergence, SlotTable, read
from stratakv.storage.moves import Area

DEADLINE = 60.0


def member(rank, ranks, port, pipe, work):
    """A process of the group: makes the team, does `work`, says what came of it."""
    team = GlooTeam(connect_store(port, DEADLINE), rank, ranks, "gloo", DEADLINE)
    pipe.send("here")
    try:
        pipe.send(work(team))
    except Exception as error:
        pipe.send(error)
    pipe.recv()


class Members:
    """`ranks` processes that do `work`; the store is the test's own."""

    def __init__(self, ranks, work):
        self.store = open_store()
        self.pipes, self.processes = [], []
        for rank in range(ranks):
            ours, theirs = processes().Pipe()
            process = processes().Process(
                target=member, args=(rank, ranks, self.store.port, theirs, work), daemon=True
            )
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)
        for rank in range(ranks):
            assert self.result(rank) == "here"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join(DEADLINE)

    def result(self, rank):
        assert self.pipes[rank].poll(DEADLINE), f"rank {rank} says nothing"
        return self.pipes[rank].recv()


def steps(team):
    """A few plans over a slot table, each rank at its own pace; then all kinds of meeting."""
    table, landed = SlotTable(), []
    operation = table.start(Area.PREFETCH, 3)
    for number in range(1, 6):
        operation.advance(number * (team.rank + 1))
        pending = team.group.all_reduce_min(table.fill(number, 10 * number + team.rank))
        agreed = read(pending.wait(), number)
        landed.append((agreed.slot(Area.PREFETCH, 3).done, agreed.copied_upto))
    capacities = agree(team.group, 7 + team.rank, 9 - team.rank)
    said = team.from_head("word", lambda: f"said by {team.rank}")
    team.meet("the end")
    return landed, capacities, said


def diverge(team):
    vector = SlotTable().fill(5 + team.rank, 0)
    try:
        read(team.group.all_reduce_min(vector).wait(), 5 + team.rank)
    except Divergence as error:
        return str(error)


def until_it_breaks(team):
    try:
        for number in range(1, 1_000_000):
            team.group.all_reduce_min(SlotTable().fill(number, 0)).wait()
            time.sleep(0.01)
    except RankMissing as error:
        return str(error)


def test_the_minimum_of_each_plan_and_what_the_head_says():
    with Members(3, steps) as members:
        results = [members.result(rank) for rank in range(3)]
    expected = ([(n, 10 * n) for n in range(1, 6)], [7, 7], "said by 0")
    assert results == [expected] * 3


def test_ranks_at_different_plans_notice_at_once():
    with Members(2, diverge) as members:
        for rank in range(2):
            assert "diverged: " in members.result(rank)


def test_a_rank_that_dies_breaks_the_collective_of_the_others():
    with Members(2, until_it_breaks) as members:
        members.processes[1].kill()
        assert "could not agree, one is gone or hangs" in members.result(0)


def test_a_rank_that_does_not_come_is_named():
    store = open_store()
    with pytest.raises(RankMissing, match=r"not all ranks came to 'start' .*missing: start/1\)"):
        GlooTeam(store, 0, 2, "gloo", 0.5)


def test_a_head_that_does_not_answer_is_an_error():
    with pytest.raises(RankMissing, match="does not answer"):
        connect_store(9, 0.5)


def test_one_rank_alone_agrees_with_itself():
    alone = Alone()
    assert agree(alone.group, 3, 0) == [3, 0]
    assert alone.from_head("word", lambda: "hello") == "hello"
