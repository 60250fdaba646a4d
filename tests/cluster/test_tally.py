"""Counts by replica as data, and how `/metrics` shows them."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stratakv.cluster import tally
from stratakv.cluster.metrics import Metrics
from stratakv.cluster.tally import FAMILIES, Tally


def shown(counts: Tally) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(Metrics(counts).render().decode())
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("stratakv_replica_")
    }


def test_counters_add_up_and_gauges_stand():
    counts = Tally()
    for tokens in (64, 0, 128):
        counts.add(tally.PROMPT_TOKENS, tokens, 1, "host")
    counts.add(tally.ROUTES, 1, 0, "deepest hit")
    for running in (3, 2):
        counts.set(tally.RUNNING, running, 0)
    assert shown(counts) == {
        ("stratakv_replica_prompt_tokens_total", "1", "host"): 192,
        ("stratakv_replica_routes_total", "0", "deepest hit"): 1,
        ("stratakv_replica_requests_running", "0"): 2,
    }


def test_what_is_added_later_is_shown_too():
    counts = Tally()
    metrics = Metrics(counts)
    assert b"stratakv_replica_output_tokens_total{" not in metrics.render()
    counts.add(tally.OUTPUT_TOKENS, 7, 0)
    assert b'stratakv_replica_output_tokens_total{replica="0"} 7.0' in metrics.render()


def test_a_counter_only_grows_and_a_gauge_is_only_set():
    counts = Tally()
    with pytest.raises(ValueError, match="output_tokens"):
        counts.add(tally.OUTPUT_TOKENS, -1, 0)
    with pytest.raises(ValueError, match="requests_running"):
        counts.add(tally.RUNNING, 1, 0)
    with pytest.raises(ValueError, match="output_tokens"):
        counts.set(tally.OUTPUT_TOKENS, 1, 0)
    assert not list(counts)


def test_names_are_unique_and_every_family_tells_the_replica():
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert all(family.labels[0] == "replica" for family in FAMILIES)
