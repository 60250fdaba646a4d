import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from stratakv.cluster.messages import Usage
from stratakv.cluster.metrics import MapOutcome, Metrics

_counts = st.integers(0, 10_000)


def _samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


@given(st.lists(st.tuples(_counts, _counts, _counts, _counts, _counts)))
def test_prompt_tokens_are_conserved(shares: list[tuple[int, int, int, int, int]]):
    metrics = Metrics()
    for device, host, store, first, second in shares:
        computed = first + second
        metrics.usage(
            Usage(
                prompt=device + host + store + computed,
                device=device,
                host=host,
                store=store,
                computed=computed,
                recomputed=first,
                misses={"new": first, "page tail": second},
            ),
            output=second,
        )
    samples = _samples(metrics)
    tiers = [
        samples["stratakv_prompt_tokens_by_tier_total", tier]
        for tier in ("device", "host", "store", "computed")
    ]
    assert sum(tiers) == samples["stratakv_prompt_tokens_total",] == sum(map(sum, shares))
    reasons = [
        value for key, value in samples.items() if key[0] == "stratakv_computed_tokens_by_reason_total"
    ]
    assert sum(reasons) == tiers[-1]
    assert samples["stratakv_recomputed_tokens_total",] == sum(share[3] for share in shares)
    assert samples["stratakv_output_tokens_total",] == sum(share[4] for share in shares)
    assert samples["stratakv_unbalanced_requests_total",] == 0


def test_an_account_that_does_not_add_up_is_named_and_spoils_nothing(caplog: pytest.LogCaptureFixture):
    metrics = Metrics()
    with caplog.at_level(logging.ERROR):
        metrics.usage(Usage(prompt=10, device=4, computed=5), output=1)
    samples = _samples(metrics)
    assert samples["stratakv_unbalanced_requests_total",] == 1
    assert samples["stratakv_prompt_tokens_total",] == 0
    assert "does not add up" in caplog.text


def test_tokens_of_one_step_share_its_time():
    metrics = Metrics()
    metrics.first_token(0.3)
    metrics.next_tokens(4, 0.08)
    samples = _samples(metrics)
    assert samples["stratakv_time_to_first_token_seconds_count",] == 1
    assert samples["stratakv_inter_token_seconds_count",] == 4
    assert samples["stratakv_inter_token_seconds_sum",] == pytest.approx(0.08)


def test_gauges_and_outcomes():
    metrics = Metrics()
    metrics.load(running=1, waiting=2, ready=3, total=4, map_bytes=5)
    metrics.token_map(MapOutcome.END)
    metrics.request("/v1/models", 200)
    samples = _samples(metrics)
    names = ("requests_running", "requests_waiting", "replicas_ready", "replicas", "token_map_bytes")
    assert [samples[f"stratakv_{name}",] for name in names] == [1, 2, 3, 4, 5]
    assert samples["stratakv_token_map_lookups_total", "end"] == 1
    assert samples["stratakv_requests_total", "/v1/models", "200"] == 1


def test_registries_are_apart():
    first, second = Metrics(), Metrics()
    first.request("/x", 200)
    assert ("stratakv_requests_total", "/x", "200") not in _samples(second)
