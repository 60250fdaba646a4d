"""Probing finds what reaches the attention function, and refuses what a pool by layer cannot hold."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AttentionInterface

from stratakv.kernels.probe import PROBE_ATTENTION, probe_shapes, register
from stratakv.kernels.shapes import LayerShape


def attends(*layers: int):
    """A forward whose attention runs in `layers`: layer i has i + 1 KV heads, K of 8 and V of 4 elements."""
    register()
    attention = AttentionInterface()[PROBE_ATTENTION]

    def run() -> None:
        for layer in layers:
            key, value = torch.ones(1, layer + 1, 3, 8), torch.ones(1, layer + 1, 3, 4)
            out, _ = attention(
                SimpleNamespace(layer_idx=layer), torch.ones(1, 6, 3, 8), key, value, None, scaling=1.0
            )
            assert out.shape == (1, 3, 6, 4)

    return run


def test_shapes_come_in_layer_order():
    assert probe_shapes(attends(1, 0, 2)) == [LayerShape(1, 8, 4), LayerShape(2, 8, 4), LayerShape(3, 8, 4)]


@pytest.mark.parametrize("layers", [(), (1, 2), (0, 2)])
def test_layers_without_attention_are_refused(layers):
    with pytest.raises(ValueError, match="not in every layer"):
        probe_shapes(attends(*layers))


def test_a_layer_that_attends_twice_is_refused():
    with pytest.raises(ValueError, match="layer 1 attends more than once"):
        probe_shapes(attends(0, 1, 1))
