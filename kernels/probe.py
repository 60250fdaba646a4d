"""Finds the KV shapes of a model by running it once over an attention that only looks.

What a config says of heads and dimensions has too many spellings and exceptions to be computed with; what reaches the
attention function is what must be stored.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, cast

import torch
from transformers import AttentionInterface

from stratakv.kernels.shapes import LayerShape

PROBE_ATTENTION = "stratakv_probe"
"""The attention implementation to ask transformers for while probing."""

_seen: ContextVar[dict[int, LayerShape]] = ContextVar("seen")


def register() -> None:
    """Make `PROBE_ATTENTION` known to transformers. Harmless when repeated."""
    AttentionInterface.register(PROBE_ATTENTION, _probe_attention)


def probe_shapes(run: Callable[[], Any]) -> list[LayerShape]:
    """KV shape of each attention layer that `run`, a forward over `PROBE_ATTENTION`, goes through, in layer order.

    ValueError when the layers are not numbered 0 .. n - 1, each attending once: then KV is not all the model's state,
    or layers share it, which a pool by layer cannot hold.
    """
    seen: dict[int, LayerShape] = {}
    token = _seen.set(seen)
    try:
        run()
    finally:
        _seen.reset(token)
    if sorted(seen) != list(range(len(seen))) or not seen:
        raise ValueError(f"attention was seen in layers {sorted(seen)}, not in every layer")
    return [seen[layer] for layer in range(len(seen))]


def _probe_attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, None]:
    """Note the shapes and answer zeros [batch, tokens, heads, value_dim]."""
    layer = cast(int, module.layer_idx)
    seen = _seen.get()
    if layer in seen:
        raise ValueError(f"layer {layer} attends more than once in a forward")
    seen[layer] = LayerShape(heads=key.shape[1], key_dim=key.shape[3], value_dim=value.shape[3])
    return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None
