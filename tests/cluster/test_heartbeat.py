import pytest

from stratakv.cluster.heartbeat import Cause, HeartbeatMonitor
from stratakv.cluster.settings import HeartbeatSettings


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def monitor(clock):
    return HeartbeatMonitor(HeartbeatSettings(timeout=5, step_timeout=60), 120, clock)


def test_nobody_expected_nobody_overdue(monitor, clock):
    monitor.beat(0, 0, 1, 5, 0.0)
    clock.now += 1e6
    assert monitor.overdue(clock.now) == []


def test_a_rank_has_the_start_deadline_until_its_first_beat(monitor, clock):
    monitor.expect(0, 1, 3)
    clock.now += 120
    assert monitor.overdue(clock.now) == []
    clock.now += 1
    (verdict,) = monitor.overdue(clock.now)
    assert (verdict.replica, verdict.rank, verdict.generation) == (0, 1, 3)
    assert verdict.cause is Cause.NEVER_STARTED
    assert str(verdict) == (
        "rank 1 of replica 0 (generation 3) has not reported once in 121.0 s since it was started "
        "(start deadline 120 s)"
    )


def test_silence_is_judged_by_the_timeout_after_the_first_beat(monitor, clock):
    monitor.expect(2, 0, 1)
    clock.now += 100
    monitor.beat(2, 0, 1, 7, 0.0)
    clock.now += 5
    assert monitor.overdue(clock.now) == []
    clock.now += 1.25
    (verdict,) = monitor.overdue(clock.now)
    assert verdict.cause is Cause.SILENT and verdict.step == 7
    assert str(verdict) == (
        "rank 0 of replica 2 (generation 1) has been silent for 6.2 s (heartbeat.timeout is 5 s)"
    )
    monitor.beat(2, 0, 1, 8, 0.0)
    assert monitor.overdue(clock.now) == []


def test_only_the_silent_rank_is_named(monitor, clock):
    for rank in range(4):
        monitor.expect(0, rank, 1)
        monitor.beat(0, rank, 1, 1, 0.0)
    clock.now += 6
    for rank in (0, 1, 3):
        monitor.beat(0, rank, 1, 2, 0.0)
    assert [verdict.rank for verdict in monitor.overdue(clock.now)] == [2]


def test_an_old_step_is_named_and_an_unfinished_first_step_is_not(monitor, clock):
    monitor.expect(0, 0, 1)
    monitor.beat(0, 0, 1, 1, None)
    for _ in range(200):
        clock.now += 1
        monitor.beat(0, 0, 1, 1, None)
        assert monitor.overdue(clock.now) == []
    monitor.beat(0, 0, 1, 2, 60.0)
    assert monitor.overdue(clock.now) == []
    monitor.beat(0, 0, 1, 2, 61.0)
    (verdict,) = monitor.overdue(clock.now)
    assert verdict.cause is Cause.STUCK
    assert str(verdict) == (
        "rank 0 of replica 0 (generation 1) has been in step 2 for 61.0 s (heartbeat.step_timeout is 60 s)"
    )


def test_a_rank_that_is_silent_before_its_first_step_is_still_silent(monitor, clock):
    monitor.expect(0, 0, 1)
    monitor.beat(0, 0, 1, 0, None)
    clock.now += 6
    assert [verdict.cause for verdict in monitor.overdue(clock.now)] == [Cause.SILENT]


def test_beats_of_another_generation_keep_nobody_alive(monitor, clock):
    monitor.expect(0, 0, 1)
    monitor.beat(0, 0, 1, 9, 0.0)
    monitor.expect(0, 0, 2)
    clock.now += 121
    monitor.beat(0, 0, 1, 10, 0.0)
    monitor.beat(0, 0, 3, 10, 0.0)
    (verdict,) = monitor.overdue(clock.now)
    assert (verdict.generation, verdict.cause, verdict.step) == (2, Cause.NEVER_STARTED, None)


def test_expecting_again_or_an_older_generation_does_not_reset_the_clock(monitor, clock):
    monitor.expect(0, 0, 2)
    clock.now += 121
    monitor.expect(0, 0, 2)
    monitor.expect(0, 0, 1)
    assert [verdict.generation for verdict in monitor.overdue(clock.now)] == [2]


def test_forget_takes_all_ranks_of_the_generation_and_older_but_no_newer(monitor, clock):
    monitor.expect(0, 0, 1)
    monitor.expect(0, 1, 1)
    monitor.expect(0, 2, 2)
    monitor.expect(1, 0, 1)
    monitor.forget(0, 1)
    clock.now += 1000
    assert [(v.replica, v.rank) for v in monitor.overdue(clock.now)] == [(0, 2), (1, 0)]
