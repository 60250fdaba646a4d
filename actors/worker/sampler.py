"""Draws the next token of each request from its logits.

Randomness is a pure function of (seed, choice, output position): the draw of a request does not depend on its batch, on
earlier draws or on this process, so a request that is resumed elsewhere goes on with the same random numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stratakv.cluster.messages import Sampling

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_WORD = 2**64
_FIRST_TRY = 512


class Draw(NamedTuple):
    """One token to draw: how, and which output token of its request it is (0 is the first)."""

    sampling: Sampling
    position: int


class BadLogits(ValueError):
    """Logits from which nothing can be drawn. `rows` are the places in the batch, so that only these need to fail."""

    def __init__(self, rows: Sequence[int]):
        super().__init__(
            f"the model gave logits that are not numbers in rows {', '.join(map(str, rows))} of the batch; "
            "its weights may be damaged, or model.dtype too narrow for it"
        )
        self.rows = tuple(rows)


def sample(logits: torch.Tensor, requests: Sequence[Draw]) -> list[int]:
    """The token of each row of `logits` [rows, vocab], drawn as the request with the same index asks.

    BadLogits when the largest logit of a row is not a finite number or any is NaN; ValueError when the two do not pair.
    """
    if len(logits) != len(requests):
        raise ValueError(f"{len(logits)} rows of logits for {len(requests)} requests")
    if not requests:
        return []
    best = logits.max(dim=-1)  # a NaN anywhere is the maximum
    finite = torch.isfinite(best.values).tolist()
    if not all(finite):
        raise BadLogits([row for row, good in enumerate(finite) if not good])
    tokens: list[int] = best.indices.tolist()
    drawn = [row for row, draw in enumerate(requests) if draw.sampling.temperature > 0]
    if drawn:
        for row, values in zip(drawn, logits[drawn].double().cpu().numpy(), strict=True):
            tokens[row] = _draw(values, requests[row])
    return tokens


def uniform(seed: int, choice: int, position: int) -> float:
    """The random number in [0, 1) of an output position. Any integers will do; seeds count modulo 2**64."""
    key = seed % _WORD + choice % _WORD * _WORD
    word = int(np.random.Philox(key=key, counter=position).random_raw())
    return (word >> 11) * 2.0**-53


def _draw(logits: Floats, draw: Draw) -> int:
    """Inverse CDF in the order of token ids over what top_k and top_p leave."""
    sampling = draw.sampling
    with np.errstate(over="ignore"):  # a tiny temperature may send the others to -inf, which is right
        weights = np.exp((logits - logits.max()) / sampling.temperature)
    ids = np.arange(len(weights))
    if 0 < sampling.top_k < len(weights):
        ids = _top_k(weights, sampling.top_k)
    if sampling.top_p < 1.0:
        ids = ids[_top_p(weights[ids], sampling.top_p)]
    cdf = weights[ids].cumsum()
    point = uniform(sampling.seed, sampling.choice, draw.position) * cdf[-1]
    point = min(point, np.nextafter(cdf[-1], 0.0))  # the product may round up to the sum
    return int(ids[np.searchsorted(cdf, point, side="right")])


def _top_k(weights: Floats, count: int) -> Ids:
    """Indices of the `count` largest weights, ascending; of equal ones the lower indices."""
    least = np.partition(weights, -count)[-count]
    above = np.flatnonzero(weights > least)
    ties = np.flatnonzero(weights == least)[: count - len(above)]
    return np.sort(np.concatenate([above, ties]))


def _top_p(weights: Floats, share: float) -> Ids:
    """Indices, ascending, of the fewest largest weights that make up `share` of the sum; one at least."""
    needed = share * weights.sum()
    # The heaviest few nearly always do, and finding them is much cheaper than sorting a vocabulary.
    count = min(_FIRST_TRY, len(weights))
    while True:
        ids = _top_k(weights, count)
        order = ids[np.argsort(-weights[ids], kind="stable")]
        reached = np.searchsorted(weights[order].cumsum(), needed) + 1
        if reached <= count or count == len(weights):
            return np.sort(order[:reached])
        count = min(8 * count, len(weights))
