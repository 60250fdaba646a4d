"""Probing finds what reaches attention and the cache, and refuses what pools by layer cannot hold."""

from typing import Any

import pytest
import torch
from transformers import AttentionInterface

from stratakv.kernels.probe import PROBE_ATTENTION, Probed, probe, register
from stratakv.kernels.shapes import Attention, LayerShape, Place, StateShape


class Attends(torch.nn.Module):
    """Layer `layer` has layer + 1 KV heads, K of 8 and V of 4 elements."""

    def __init__(self, layer: int, window: int | None = None):
        super().__init__()
        self.layer, self.window = layer, window

    def forward(self, hidden: torch.Tensor, cache: Any) -> torch.Tensor:
        key, value = torch.ones(1, self.layer + 1, 3, 8), torch.ones(1, self.layer + 1, 3, 4)
        key, value = cache.update(key, value, self.layer)
        return self.attend(key, value)

    def attend(self, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        register()
        out, _ = AttentionInterface()[PROBE_ATTENTION](
            self, torch.ones(1, 6, 3, 8), key, value, None, scaling=1.0, sliding_window=self.window
        )
        assert out.shape == (1, 3, 6, value.shape[3])
        return out


class Borrows(Attends):
    """Attends to KV of another layer, which it does not give to the cache."""

    def forward(self, hidden: torch.Tensor, cache: Any) -> torch.Tensor:
        return self.attend(torch.ones(1, 1, 3, 8), torch.ones(1, 1, 3, 4))


class Computes(Attends):
    """Attends by code of its own."""

    def attend(self, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value


class Latent(Attends):
    """Keeps 5 + 2 elements and attends with two heads."""

    def expand_kv(self, latent: torch.Tensor, rotary: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(1, 2, 3, 8), torch.ones(1, 2, 3, 4)

    def forward(self, hidden: torch.Tensor, cache: Any) -> torch.Tensor:
        latent, rotary = cache.update(torch.ones(1, 1, 3, 5), torch.ones(1, 1, 3, 2), self.layer)
        return self.attend(*self.expand_kv(latent, rotary))


class Remembers(torch.nn.Module):
    """A mixer whose convolution is a module of its own that is given the cache."""

    def __init__(self, layer: int):
        super().__init__()
        self.layer = layer
        self.convolution = Convolution(layer)

    def forward(self, hidden: torch.Tensor, cache: Any) -> torch.Tensor:
        assert cache.get_recurrent_state(self.layer) is None
        self.convolution(hidden, cache)
        cache.update_recurrent_state(torch.ones(1, 2, 5, dtype=torch.float64), self.layer, state_idx=1)
        return hidden


class Convolution(torch.nn.Module):
    """Needs the last four inputs."""

    def __init__(self, layer: int):
        super().__init__()
        self.layer = layer

    def forward(self, hidden: torch.Tensor, cache: Any) -> torch.Tensor:
        inputs = cache.update_conv_state(torch.ones(1, 6, 3), self.layer, conv_kernel_size=4)
        assert inputs.shape == (1, 6, 4)
        return hidden


def probed(*layers: torch.nn.Module) -> Probed:
    network = torch.nn.ModuleList(layers)
    hidden = torch.ones(1, 3, 6)

    def run(cache: Any) -> None:
        for layer in network:
            layer(hidden, cache)

    found = probe(network, run)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    return found


def test_shapes_come_in_layer_order():
    found = probed(Attends(1), Attends(0), Attends(5))
    assert found.shapes.full == (LayerShape(1, 8, 4), LayerShape(2, 8, 4), LayerShape(6, 8, 4))
    assert found.shapes.places == {n: Place(Attention.FULL, i) for i, n in enumerate((0, 1, 5))}
    assert (found.shapes.sliding, found.shapes.window, found.shapes.states) == ((), None, ())
    assert (found.windows, found.mixers, found.shapes.latent) == ((), (), False)


def test_layers_with_a_window_are_kept_apart():
    found = probed(Attends(0, window=7), Attends(1), Attends(2, window=9))
    assert found.shapes.full == (LayerShape(2, 8, 4),)
    assert found.shapes.sliding == (LayerShape(1, 8, 4), LayerShape(3, 8, 4))
    assert (found.shapes.window, found.windows) == (9, (7, 9))
    assert found.shapes.places[2] == Place(Attention.SLIDING, 1)
    assert found.shapes.places[1] == Place(Attention.FULL, 0)


def test_a_model_whose_layers_all_slide_is_kept_whole():
    found = probed(Attends(0, window=7), Attends(1, window=7))
    assert found.shapes.full == (LayerShape(1, 8, 4), LayerShape(2, 8, 4))
    assert (found.shapes.sliding, found.shapes.window, found.windows) == ((), None, (7,))


def test_states_and_the_modules_that_keep_them():
    mixer, other = Remembers(0), Remembers(3)
    found = probed(mixer, Attends(1), other)
    assert found.shapes.states == tuple(
        state
        for layer in (0, 3)
        for state in (
            StateShape(layer, "conv.0", (6, 4), "float32", 4),
            StateShape(layer, "recurrent.1", (2, 5), "float64", 8),
        )
    )
    assert found.mixers == (mixer, other)
    assert found.shapes.states_bytes() == 2 * (96 + 80)


def test_latents_are_kept_as_one_row():
    found = probed(Latent(0), Latent(1))
    assert found.shapes.full == (LayerShape(1, 7, 0),) * 2
    assert found.shapes.latent


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((), "no layer keeps KV"),
        ((Remembers(0),), "no layer keeps KV"),
        ((Attends(0), Attends(1), Attends(1)), "layer 1 attends more than once"),
        ((Attends(0), Borrows(1)), "has not given to the cache"),
        ((Computes(0), Computes(1)), "attend by code of their own"),
        ((Attends(0), Computes(1)), "attend by code of their own"),
        ((Latent(0), Attends(1)), "some layers keep compressed latents"),
    ],
)
def test_what_pools_cannot_hold_is_refused(layers, message):
    with pytest.raises(ValueError, match=message):
        probed(*layers)
