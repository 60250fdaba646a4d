"""Recurrent layers over a flat batch: each request's tokens meet its own state.

A mixer (Mamba-2, gated delta net, short convolution) takes a batch of equally long sequences. The flat batch of a
forward holds many requests in one sequence, so a served mixer runs once for all that decode and once for each chunk.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from stratakv.kernels.context import current_forward
from stratakv.kernels.forward_cache import ForwardCache


def serve_by_request(mixers: Iterable[torch.nn.Module]) -> None:
    """Make each of `mixers` run request by request, in place: only what they do when called changes."""
    for mixer in mixers:
        mixer.forward = ByRequest(mixer.forward)


class ByRequest:
    """Stands in for the `forward` of a mixer, called as it is: the flat batch first, the cache by its name."""

    def __init__(self, forward: Callable[..., Any]):
        self._forward = forward

    def __call__(self, hidden_states: torch.Tensor, *, cache: ForwardCache, **more: Any) -> torch.Tensor:
        """`hidden_states` [1, T, width] of the current forward to the mixer's output [1, T, width]."""
        out = []
        for part in current_forward().state_parts:
            sequences = hidden_states[0, part.tokens].reshape(len(part.slots), -1, hidden_states.shape[-1])
            cache.begin(part)
            out.append(self._forward(sequences, cache=cache, **more).flatten(0, 1))
            cache.end()
        return torch.cat(out)[None]
