"""The supervisor's decisions, with a clock that the test moves."""

import pytest

from stratakv.actors.supervisor.settings import SupervisorSettings
from stratakv.actors.supervisor.status import ProcessId, RankPhase, ReplicaPhase, Report
from stratakv.actors.supervisor.supervisor import Order, OrderKind, Supervisor
from stratakv.actors.worker.config import Heartbeat
from stratakv.cluster.messages import Endpoint, ModelCard
from stratakv.cluster.settings import HeartbeatSettings

CARD = ModelCard(
    name="m",
    path="m",
    vocab_size=8,
    max_total_tokens=64,
    context_length=64,
    page_size=4,
    eos_token_ids=(),
    identity="",
)


class Cluster:
    """A supervisor of one replica with `ranks` ranks, and the means to move it through its life."""

    def __init__(self, ranks: int = 1, **settings: float):
        self.now = 0.0
        self.ranks = ranks
        self.supervisor = Supervisor(
            1, ranks, SupervisorSettings.model_validate(settings), HeartbeatSettings(), lambda: self.now
        )

    @property
    def replica(self):
        return self.supervisor.status()[0]

    def say(
        self, generation: int, rank: int, phase: RankPhase, message: str = "", step_age: float = 0.0
    ) -> None:
        ready = phase is RankPhase.READY
        endpoint = Endpoint(replica=0, generation=generation, address="tcp://x", public_key="k", card=CARD)
        self.supervisor.report(
            Report(
                replica=0,
                rank=rank,
                generation=generation,
                process=ProcessId(node="n", pid=100 + rank, born=1),
                phase=phase,
                message=message,
                endpoint=endpoint if ready and rank == 0 else None,
                heartbeat=Heartbeat(step=7, step_age=step_age) if ready else None,
            )
        )

    def start(self) -> int:
        """Start the next generation and let all its ranks be ready."""
        (order,) = self.supervisor.decide()
        assert order.kind is OrderKind.START
        for rank in range(self.ranks):
            self.say(order.generation, rank, RankPhase.READY)
        return order.generation

    def bury(self) -> None:
        (order,) = self.supervisor.decide()
        assert order.kind is OrderKind.KILL
        self.supervisor.buried(0, order.generation)


def test_a_replica_is_ready_when_all_its_ranks_are():
    cluster = Cluster(ranks=2)
    assert cluster.supervisor.decide() == [Order(OrderKind.START, 0, 1)]
    assert cluster.supervisor.decide() == []
    cluster.say(1, 0, RankPhase.READY)
    cluster.say(1, 1, RankPhase.LOADING)
    assert cluster.replica.phase is ReplicaPhase.STARTING
    assert cluster.supervisor.endpoints() == []
    cluster.say(1, 1, RankPhase.READY)
    assert cluster.replica.phase is ReplicaPhase.READY
    assert [endpoint.generation for endpoint in cluster.supervisor.endpoints()] == [1]


def test_a_death_ends_the_generation_before_the_next_starts():
    cluster = Cluster(ranks=2)
    cluster.start()
    cluster.supervisor.died(0, 1, 1)
    assert cluster.supervisor.endpoints() == []
    assert cluster.supervisor.decide() == [Order(OrderKind.KILL, 0, 1)]
    assert cluster.supervisor.decide() == [], "the next must wait until the old processes are gone"
    cluster.supervisor.buried(0, 1)
    assert cluster.supervisor.decide() == [Order(OrderKind.START, 0, 2)]
    assert "rank 1 of replica 0 (generation 1) died" in cluster.replica.message


def test_reports_of_an_old_generation_change_nothing():
    cluster = Cluster()
    cluster.start()
    cluster.supervisor.died(0, 1, 0)
    cluster.say(1, 0, RankPhase.READY)
    assert cluster.replica.phase is ReplicaPhase.DYING
    cluster.bury()
    cluster.supervisor.decide()
    cluster.say(1, 0, RankPhase.READY)
    cluster.supervisor.died(0, 1, 0)
    assert cluster.replica.phase is ReplicaPhase.STARTING


@pytest.mark.parametrize(
    ("seconds", "step_age", "ends"),
    [(4.9, 0.0, False), (5.1, 0.0, True), (1.0, 59.0, False), (1.0, 61.0, True)],
)
def test_silence_and_a_stuck_step_end_a_generation(seconds: float, step_age: float, ends: bool):
    cluster = Cluster()
    cluster.start()
    cluster.say(1, 0, RankPhase.READY, step_age=step_age)
    cluster.now += seconds
    orders = cluster.supervisor.decide()
    assert orders == ([Order(OrderKind.KILL, 0, 1)] if ends else [])
    assert ("rank 0" in cluster.replica.message) is ends


def test_a_rank_that_fails_because_another_is_gone_does_not_take_the_blame():
    cluster = Cluster(ranks=2)
    cluster.start()
    cluster.now = 1.0
    cluster.say(1, 0, RankPhase.MISHAP, "the ranks could not agree")
    assert cluster.supervisor.decide() == []
    cluster.supervisor.died(0, 1, 1)
    assert cluster.supervisor.decide() == [Order(OrderKind.KILL, 0, 1)]
    assert "rank 1 of replica 0 (generation 1) died" in cluster.replica.message
    cluster.supervisor.buried(0, 1)
    cluster.start()
    cluster.now = 100.0
    assert cluster.replica.phase is ReplicaPhase.READY


def test_a_rank_that_is_silent_is_named_and_not_the_one_that_failed_for_it():
    cluster = Cluster(ranks=2)
    cluster.start()
    for cluster.now in (1.0, 2.0, 3.0, 4.0, 5.0):
        cluster.say(1, 0, RankPhase.MISHAP, "the ranks could not agree")
        assert cluster.supervisor.decide() == []
    cluster.now = 5.5
    assert cluster.supervisor.decide() == [Order(OrderKind.KILL, 0, 1)]
    assert "rank 1 of replica 0 (generation 1) has been silent for 5.5 s" in cluster.replica.message


def test_a_rank_that_fails_by_itself_ends_the_generation_soon():
    cluster = Cluster(ranks=2)
    cluster.start()
    for cluster.now in (1.0, 3.0, 5.0):
        cluster.say(1, 0, RankPhase.READY)
        cluster.say(1, 1, RankPhase.MISHAP, "rank 1 is out of luck")
        assert cluster.supervisor.decide() == []
    cluster.now = 6.0
    assert cluster.supervisor.decide() == [Order(OrderKind.KILL, 0, 1)]
    assert cluster.replica.message == "rank 1 is out of luck"


def test_loading_may_be_silent_up_to_the_start_deadline():
    cluster = Cluster(start_timeout=100)
    cluster.supervisor.decide()
    cluster.say(1, 0, RankPhase.LOADING)
    cluster.now = 99
    assert cluster.supervisor.decide() == []
    cluster.now = 101
    assert cluster.supervisor.decide() == [Order(OrderKind.KILL, 0, 1)]


def test_a_hopeless_start_is_not_tried_again():
    cluster = Cluster()
    cluster.supervisor.decide()
    cluster.say(1, 0, RankPhase.HOPELESS, "model.path: no such model")
    cluster.bury()
    cluster.now += 1e6
    assert cluster.supervisor.decide() == []
    assert cluster.replica.phase is ReplicaPhase.FAILED
    assert cluster.replica.message == "model.path: no such model"


def test_mishaps_back_off_and_are_given_up_at_the_limit():
    cluster = Cluster(backoff=1, backoff_limit=3, rapid_failures=6)
    cluster.start()
    cluster.supervisor.died(0, 1, 0)
    cluster.bury()
    waits = []
    for generation in range(2, 7):
        began = cluster.now
        while not (orders := cluster.supervisor.decide()):
            cluster.now += 0.5
            assert cluster.now - began < 100
        waits.append(cluster.now - began)
        assert orders == [Order(OrderKind.START, 0, generation)]
        cluster.say(generation, 0, RankPhase.MISHAP, "out of luck")
        cluster.bury()
    assert waits == [0, 1, 2, 3, 3]
    assert cluster.replica.phase is ReplicaPhase.FAILED
    assert "out of luck; given up after 6 failures in a row" in cluster.replica.message


def test_one_that_has_never_served_is_given_up_sooner():
    cluster = Cluster(first_failures=2)
    for generation in (1, 2):
        assert cluster.supervisor.decide() == [Order(OrderKind.START, 0, generation)]
        cluster.say(generation, 0, RankPhase.MISHAP, "out of luck")
        cluster.bury()
    assert cluster.replica.phase is ReplicaPhase.FAILED


def test_long_service_forgives_earlier_failures():
    cluster = Cluster(rapid_failures=2, stable_after=60)
    for _ in range(4):
        generation = cluster.start()
        cluster.now += 61
        cluster.say(generation, 0, RankPhase.READY)
        cluster.supervisor.died(0, generation, 0)
        cluster.bury()
    assert cluster.replica.phase is ReplicaPhase.WAITING


def test_no_room_is_final_at_the_first_start_and_retried_later():
    cluster = Cluster()
    cluster.supervisor.decide()
    cluster.supervisor.not_started(0, 1, "no room")
    cluster.bury()
    assert cluster.replica.phase is ReplicaPhase.FAILED

    cluster = Cluster()
    cluster.start()
    cluster.supervisor.died(0, 1, 0)
    cluster.bury()
    cluster.supervisor.decide()
    cluster.supervisor.not_started(0, 2, "no room")
    cluster.bury()
    assert cluster.replica.phase is ReplicaPhase.WAITING


def test_a_restarted_supervisor_takes_over_what_lives():
    cluster = Cluster()
    cluster.supervisor.adopt(0, 4)
    assert cluster.supervisor.decide() == []
    cluster.say(4, 0, RankPhase.READY)
    assert cluster.replica.phase is ReplicaPhase.READY


def test_a_restarted_supervisor_goes_on_counting_generations():
    cluster = Cluster()
    cluster.supervisor.succeed(0, 4)
    assert cluster.supervisor.decide() == [Order(OrderKind.KILL, 0, 4)]
    cluster.supervisor.buried(0, 4)
    assert cluster.supervisor.decide() == [Order(OrderKind.START, 0, 5)]
