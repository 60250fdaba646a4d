"""The law of conservation: prompt = device + host + store + computed, and reasons sum to computed, in every metric."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from stratakv.cluster.account import count_request
from stratakv.cluster.messages import Usage
from stratakv.cluster.metrics import Metrics
from stratakv.cluster.tally import Tally
from stratakv.storage.tiers import Miss

tokens = st.integers(0, 1000)


@st.composite
def usages(draw):
    misses = draw(st.dictionaries(st.sampled_from([str(miss) for miss in Miss]), tokens, max_size=4))
    device, host, store = draw(tokens), draw(tokens), draw(tokens)
    wrong_prompt, wrong_miss = draw(st.sampled_from([0, 0, 0, 1])), draw(st.sampled_from([0, 0, 0, 1]))
    computed = sum(misses.values()) + wrong_miss
    prompt = device + host + store + computed + wrong_prompt
    recomputed = draw(tokens)
    return Usage(
        prompt=prompt,
        device=device,
        host=host,
        store=store,
        computed=computed,
        recomputed=recomputed,
        misses=misses,
    )


def sums(metrics):
    """Name without its prefix, and the labels that are summed over -> value."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            label = next((sample.labels[name] for name in ("tier", "reason") if name in sample.labels), "")
            key = sample.name.removeprefix("stratakv_"), label
            found[key] = found.get(key, 0) + sample.value
    return found


def total(found, name):
    return sum(value for (key, _), value in found.items() if key == name)


@given(st.lists(st.tuples(st.integers(0, 2), st.none() | usages(), tokens), max_size=12))
def test_what_is_counted_adds_up_and_is_the_same_at_both_places(requests):
    counts = Tally()
    metrics = Metrics(counts)
    for replica, usage, output in requests:
        count_request(counts, replica, usage, output)
        if usage is not None:
            metrics.usage(usage, output)
    found = sums(metrics)
    good = [usage for _, usage, _ in requests if usage is not None and usage.adds_up]
    bad = [usage for _, usage, _ in requests if usage is not None and not usage.adds_up]
    prompt = sum(usage.prompt for usage in good)
    assert total(found, "unbalanced_requests_total") == len(bad)
    assert total(found, "prompt_tokens_total") == total(found, "prompt_tokens_by_tier_total") == prompt
    assert total(found, "replica_prompt_tokens_total") == prompt
    computed = sum(usage.computed for usage in good)
    for name in ("computed_tokens_by_reason_total", "replica_computed_tokens_by_reason_total"):
        assert total(found, name) == computed
    if good:
        assert found["replica_prompt_tokens_total", "computed"] == computed
    assert total(found, "replica_recomputed_tokens_total") == sum(usage.recomputed for usage in good)
    assert total(found, "replica_output_tokens_total") == sum(output for _, _, output in requests)
