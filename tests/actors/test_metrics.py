"""What goes out to a metrics library that takes increments, and when."""

import pytest

from stratakv.actors.metrics import Publisher
from stratakv.cluster import tally
from stratakv.cluster.tally import Family, Tally


class Picky:
    """Refuses what `ray.util.metrics` refuses, and can be broken."""

    def __init__(self):
        self.counters: dict[tuple[str, ...], float] = {}
        self.gauges: dict[tuple[str, ...], float] = {}
        self.broken = False

    def add(self, family: Family, labels: dict[str, str], amount: float) -> None:
        if amount <= 0:
            raise ValueError("value must be >0")
        if self.broken:
            raise ConnectionError
        key = (family.name, *labels.items())
        self.counters[key] = self.counters.get(key, 0) + amount

    def set(self, family: Family, labels: dict[str, str], value: float) -> None:
        self.gauges[family.name, *labels.items()] = value


HOST = ("prompt_tokens", ("replica", "1"), ("tier", "host"))


def test_only_what_is_new_is_told_and_never_a_zero():
    counts, sink = Tally(), Picky()
    publisher = Publisher(counts, sink)
    counts.add(tally.PROMPT_TOKENS, 0, 1, "device")
    counts.add(tally.PROMPT_TOKENS, 64, 1, "host")
    publisher.publish()
    publisher.publish()
    assert sink.counters == {HOST: 64}
    counts.add(tally.PROMPT_TOKENS, 36, 1, "host")
    publisher.publish()
    assert sink.counters == {HOST: 100}


def test_gauges_are_told_as_they_stand_also_at_zero():
    counts, sink = Tally(), Picky()
    publisher = Publisher(counts, sink)
    for running in (2, 0):
        counts.set(tally.RUNNING, running, 1)
        publisher.publish()
        assert sink.gauges == {("requests_running", ("replica", "1")): running}


def test_what_was_not_taken_is_told_again_once():
    counts, sink = Tally(), Picky()
    publisher = Publisher(counts, sink)
    counts.add(tally.PROMPT_TOKENS, 64, 1, "host")
    sink.broken = True
    with pytest.raises(ConnectionError):
        publisher.publish()
    sink.broken = False
    publisher.publish()
    publisher.publish()
    assert sink.counters == {HOST: 64}
