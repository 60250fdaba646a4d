"""Rates: what they learn from, what they predict, and that nobody's odd second turns them over."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratakv.storage.rates import LandingRate, PrefillRate

rate_a = st.floats(1e-6, 1e-2)
rate_b = st.floats(0, 1e-6)
chunks = st.tuples(st.integers(0, 100_000), st.integers(16, 4096))


def prefill(a, b, start, tokens):
    """The model's law, summed token by token in closed form."""
    return a * tokens + b * (start * tokens + tokens**2 / 2)


# -- prefill


def test_nothing_is_predicted_before_anything_was_seen():
    rate = PrefillRate()
    assert rate.predict(0, 100) is None
    rate.note(0, 3, 1.0)  # too small to say anything
    assert rate.predict(0, 100) is None


@given(rate_a, rate_b, st.lists(chunks, min_size=3, max_size=40, unique_by=lambda chunk: chunk[0]), chunks)
def test_an_exact_law_is_found_again(a, b, seen, asked):
    rate = PrefillRate()
    for start, tokens in seen:
        rate.note(start, tokens, prefill(a, b, start, tokens))
    depths = [start + tokens / 2 for start, tokens in seen[-24:]]
    if max(depths) - min(depths) > 1000:  # else the depths are too alike to tell the slope from rounding
        assert rate.predict(*asked) == pytest.approx(prefill(a, b, *asked), rel=1e-3)


def test_one_observation_is_enough_for_a_guess():
    rate = PrefillRate()
    rate.note(0, 512, 1.0)
    assert rate.predict(512, 1024) == pytest.approx(2.0)


@given(st.lists(st.tuples(chunks, st.floats(1e-6, 1e3)), min_size=1, max_size=40), chunks)
def test_no_prediction_is_negative_and_more_tokens_never_take_less(seen, asked):
    rate = PrefillRate()
    for (start, tokens), took in seen:
        rate.note(start, tokens, took)
    start, tokens = asked
    fewer, more, deeper = (
        rate.predict(start, tokens),
        rate.predict(start, tokens + 100),
        rate.predict(start + 100, tokens),
    )
    assert 0 <= fewer <= more and fewer <= deeper


@given(st.integers(0, 10_000), st.floats(10, 1e4))
def test_single_steps_that_were_held_up_change_little(seed, times):
    generator, rate = random.Random(seed), PrefillRate()
    for step in range(24):
        start, tokens = generator.randrange(0, 30_000), generator.randrange(256, 2048)
        honest = prefill(1e-3, 1e-7, start, tokens) * generator.uniform(0.97, 1.03)
        rate.note(start, tokens, honest * (times if step % 8 == 3 else 1))
    assert rate.predict(10_000, 1024) == pytest.approx(prefill(1e-3, 1e-7, 10_000, 1024), rel=0.35)


def test_a_lasting_change_is_believed():
    rate = PrefillRate()
    for _ in range(50):
        rate.note(0, 512, 1.0)
    for _ in range(16):
        rate.note(0, 512, 3.0)
    assert rate.predict(0, 512) == pytest.approx(3.0)


# -- landing


def test_an_unknown_store_is_not_judged():
    rate = LandingRate()
    assert rate.predict(10) is None and rate.predict(10, 0, 5.0) is None
    assert rate.seconds_per_page is None and rate.latency is None
    rate.note(0, 3.0, 3.0)  # it brought nothing
    assert rate.predict(10) is None


@given(st.integers(1, 1000), st.integers(1, 1000), st.floats(0.001, 100))
def test_a_prefetch_under_way_is_judged_by_itself(landed, left, elapsed):
    stranger, known = LandingRate(), LandingRate()
    known.note(100, 1e3, 1.0)
    assert stranger.predict(left, landed, elapsed) == known.predict(left, landed, elapsed)
    assert stranger.predict(left, landed, elapsed) == pytest.approx(left * elapsed / landed)


@given(st.floats(0.001, 10), st.floats(0, 1), st.lists(st.integers(1, 500), min_size=1, max_size=30))
def test_a_steady_store_is_predicted(latency, per_page, prefetches):
    rate = LandingRate()
    for pages in prefetches:
        rate.note(pages, latency + pages * per_page, latency)
    assert rate.latency == pytest.approx(latency)
    assert rate.predict(64) == pytest.approx(latency + 64 * per_page, rel=1e-6, abs=1e-6)


def test_the_longer_a_late_store_is_silent_the_later_it_is_expected():
    rate = LandingRate()
    rate.note(64, 2.0, 0.5)
    waits = [rate.predict(64, 0, elapsed) for elapsed in (0.5, 1.0, 2.0, 8.0)]
    assert waits == sorted(waits) and waits[0] == pytest.approx(1.5) and waits[-1] == pytest.approx(9.0)
    assert rate.predict(64, 0, 0.2) == pytest.approx(1.8)


def test_the_average_follows_a_store_that_became_slow():
    rate = LandingRate()
    for _ in range(20):
        rate.note(100, 1.1, 0.1)
    for _ in range(20):
        rate.note(100, 10.1, 0.1)
    assert rate.seconds_per_page == pytest.approx(0.1, rel=0.05)


@given(st.integers(-5, 0))
def test_what_has_landed_takes_no_time(left):
    assert LandingRate().predict(left) == 0.0
