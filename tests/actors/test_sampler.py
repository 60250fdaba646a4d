"""Draws: the right distribution, from the right tokens, and a pure function of (seed, choice, position)."""

import numpy as np
import pytest
import torch

from stratakv.actors.worker.sampler import BadLogits, Draw, sample, uniform
from stratakv.cluster.messages import Sampling


def draw(position: int = 0, **sampling: object) -> Draw:
    return Draw(Sampling(max_tokens=1, **sampling), position)


def frequencies(logits: torch.Tensor, count: int = 10_000, **sampling: object) -> np.ndarray:
    """Shares of each token over `count` output positions."""
    tokens = sample(logits.expand(count, -1), [draw(i, **sampling) for i in range(count)])
    return np.bincount(tokens, minlength=logits.shape[-1]) / count


LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0, 3.0, 0.5])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_gives_the_softmax(temperature):
    expected = torch.softmax(LOGITS / temperature, 0).numpy()
    np.testing.assert_allclose(frequencies(LOGITS, temperature=temperature, seed=5), expected, atol=0.02)


def test_top_k_keeps_the_largest_and_of_equals_the_first():
    expected = np.zeros(6)
    expected[[1, 4]] = 0.5
    np.testing.assert_allclose(frequencies(LOGITS, top_k=2), expected, atol=0.02)
    assert frequencies(LOGITS, 500, top_k=1)[1] == 1.0


def test_top_p_keeps_the_fewest_that_reach_it():
    p = torch.softmax(LOGITS, 0).numpy()
    expected = np.where(np.isin(np.arange(6), [1, 4, 2]), p, 0)
    share = float(p[1] + p[4] + p[2] / 2)
    np.testing.assert_allclose(frequencies(LOGITS, top_p=share), expected / expected.sum(), atol=0.02)
    assert frequencies(LOGITS, 500, top_p=0.0)[1] == 1.0


def test_top_p_counts_within_top_k():
    expected = np.zeros(6)
    expected[[1, 4]] = 0.5
    np.testing.assert_allclose(frequencies(LOGITS, top_k=3, top_p=0.8), expected, atol=0.02)


def test_top_p_of_a_flat_distribution_goes_beyond_the_first_few():
    tokens = sample(torch.zeros(400, 5000), [draw(i, top_p=0.5) for i in range(400)])
    assert max(tokens) < 2500
    assert max(tokens) > 2000


def test_greedy_takes_the_largest_and_ignores_the_seed():
    logits = torch.randn(8, 100)
    expected = logits.argmax(-1).tolist()
    assert (
        sample(logits, [draw(i, temperature=0.0, seed=i, top_k=3, top_p=0.1) for i in range(8)]) == expected
    )


def test_tiny_temperature_is_greedy():
    logits = torch.randn(8, 100)
    assert sample(logits, [draw(i, temperature=1e-300) for i in range(8)]) == logits.argmax(-1).tolist()


def test_draws_do_not_depend_on_the_batch():
    logits = torch.randn(12, 50)
    draws = [
        draw(i, temperature=[0.0, 0.7, 1.3][i % 3], seed=i // 2, choice=i % 2, top_p=0.9) for i in range(12)
    ]
    together = sample(logits, draws)
    assert sample(logits, draws) == together
    assert [sample(logits[i : i + 1], [draws[i]])[0] for i in range(12)] == together
    order = [7, 2, 11, 0]
    assert sample(logits[order], [draws[i] for i in order]) == [together[i] for i in order]


def test_uniform_depends_on_each_part_and_is_pinned():
    """Pinned, because a request resumed by another version must go on with the same numbers."""
    numbers = {uniform(s, c, p) for s in (0, 1, -1, 2**63) for c in (0, 1, 2) for p in range(50)}
    assert len(numbers) == 4 * 3 * 50
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)
    assert [round(uniform(1234, 0, p), 12) for p in range(3)] == PINNED


PINNED = [0.334723681298, 0.592053481881, 0.08098741258]


def test_uniform_is_uniform_along_positions_and_seeds():
    for numbers in ([uniform(3, 0, p) for p in range(10_000)], [uniform(s, 0, 0) for s in range(10_000)]):
        counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
        assert ((counts - 500) ** 2 / 500).sum() < 50  # chi-squared of 19 degrees: 50 has p = 1e-4
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.05


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_name_their_rows(bad, temperature):
    logits = torch.randn(5, 20)
    logits[1, 7] = logits[4, 0] = bad
    with pytest.raises(BadLogits, match=r"rows 1, 4 ") as caught:
        sample(logits, [draw(i, temperature=temperature) for i in range(5)])
    assert caught.value.rows == (1, 4)


def test_a_row_of_minus_infinity_is_bad_but_some_are_masks():
    logits = torch.full((2, 20), float("-inf"))
    logits[0, 3] = 1.0
    with pytest.raises(BadLogits, match="rows 1 "):
        sample(logits, [draw(), draw()])
    assert sample(logits[:1], [draw()]) == [3]


def test_no_requests_and_unpaired_ones():
    assert sample(torch.zeros(0, 5), []) == []
    with pytest.raises(ValueError, match="2 rows of logits for 1"):
        sample(torch.zeros(2, 5), [draw()])
