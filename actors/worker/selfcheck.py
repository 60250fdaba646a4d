"""Proof, each time a model is loaded, that it computes the same over the paged pool as by itself.

Families differ in ways that no list keeps up with (a mask of their own, state beside KV, positions from the cache). A
model that is served wrongly is worse than one that is refused, so a short prompt decides.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from stratakv.actors.worker.checkpoint import ModelError
from stratakv.cluster.plan import Row
from stratakv.kernels.pool import DevicePool
from stratakv.kernels.shapes import LayerShape

_PROMPT = 24
_PAGE_SIZE = 4
_PAGES = _PROMPT // _PAGE_SIZE
_PIECES = (13, 23, _PROMPT)
"""Where the prompt is cut: a chunk, a chunk on cached tokens that ends within a page, and a decode step."""

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 8e-2, torch.float16: 2e-2}
"""Largest difference that is rounding, as a share of the largest logit."""


class Served(Protocol):
    """What is checked: a `Model`."""

    shapes: list[LayerShape]
    vocab_size: int
    dtype: torch.dtype
    device: torch.device

    def forward(self, rows: Sequence[Row], pool: DevicePool) -> torch.Tensor:
        """As `Model.forward`."""


def vocab_size(network: Any) -> int:
    """Token ids that the transformers model `network` has an embedding for."""
    return int(network.get_input_embeddings().weight.shape[0])


def plain_logits(network: Any) -> torch.Tensor:
    """Logits, float32 [tokens, vocab], of the check's prompt by the transformers model `network` as it is, uncached."""
    tokens = torch.tensor([_prompt(vocab_size(network))], device=network.device)
    positions = torch.arange(_PROMPT, device=network.device)[None]
    try:
        with torch.inference_mode():
            logits: torch.Tensor = network(input_ids=tokens, position_ids=positions, use_cache=False).logits
            return logits[0].float()
    except (ValueError, TypeError, RuntimeError) as error:
        raise ModelError(
            f"model.path: {network.config.model_type} does not run on a plain text prompt ({error}); give a causal LM"
        ) from error


def check_paged(model: Served, expected: torch.Tensor) -> None:
    """Compare `model` with `expected`, the `plain_logits` of its network: in one piece, then in several.

    ModelError names the check that fails and by how much.
    """
    pool = DevicePool(model.shapes, 2 * _PAGES, _PAGE_SIZE, model.dtype, model.device)
    tokens = _prompt(model.vocab_size)
    scrambled = [(5 * i + 3) % _PAGES for i in range(_PAGES)]
    whole = model.forward([Row(tuple(tokens), 0, tuple(scrambled), True)], pool)
    _compare("the paged forward of a prompt and that of transformers", whole, expected[-1:], model.dtype)
    pages = tuple(_PAGES + page for page in reversed(scrambled))
    start = 0
    for end in _PIECES:
        held = pages[: -(-end // _PAGE_SIZE)]
        piece = model.forward([Row(tuple(tokens[start:end]), start, held, True)], pool)
        _compare(
            f"a prompt cut at token {start} and the whole one", piece, expected[end - 1 : end], model.dtype
        )
        start = end


def _prompt(vocab: int) -> list[int]:
    return [(7919 * i + 11) % vocab for i in range(_PROMPT)]


def _compare(what: str, ours: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    if ours.shape != expected.shape:
        raise ModelError(
            f"model.path: the model's logits have shape {tuple(ours.shape)} where {tuple(expected.shape)} was asked "
            "for; this model cannot be served"
        )
    difference = ((ours - expected).abs().max() / expected.abs().max().clamp_min(1e-6)).item()
    if not difference <= _TOLERANCE[dtype]:
        raise ModelError(
            f"model.path: {what} differ by {difference:.2g} of the largest logit, more than {_TOLERANCE[dtype]:.0e}; "
            "the model keeps state or masks that this version does not serve"
        )
