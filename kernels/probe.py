"""Finds what a model caches by running it once over an attention and a cache that only look.

What a config says of heads, windows and states has too many spellings and exceptions to be computed with; what reaches
the attention function and the cache is what must be stored.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, Cache

from stratakv.kernels.context import Arrival
from stratakv.kernels.forward_cache import conv_name, recurrent_name
from stratakv.kernels.shapes import Attention, LayerShape, ModelShapes, Place, StateShape

PROBE_ATTENTION = "stratakv_probe"
"""The attention implementation to ask transformers for while probing."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What one forward showed: `shapes`, all `windows` that layers see, and the `mixers`, modules that keep state."""

    shapes: ModelShapes
    windows: tuple[int, ...]
    mixers: tuple[torch.nn.Module, ...]


@dataclass(frozen=True, slots=True)
class _Attended:
    """What one layer keeps, and how far it sees."""

    shape: LayerShape
    window: int | None
    latent: bool


_probing: ContextVar["ProbeCache"] = ContextVar("probing")


def register() -> None:
    """Make `PROBE_ATTENTION` known to transformers. Harmless when repeated."""
    AttentionInterface.register(PROBE_ATTENTION, _probe_attention)


def probe(network: torch.nn.Module, run: Callable[["ProbeCache"], Any]) -> Probed:
    """What `network` caches, as `run` shows it: a forward of it over `PROBE_ATTENTION` and the cache that is given.

    ValueError for what pools by layer cannot hold: no attention at all, or none that can be replaced, a layer that
    attends twice or to KV of another layer, or compressed latents in some layers only.
    """
    cache = ProbeCache()
    token = _probing.set(cache)
    try:
        with cache.watching(network):
            run(cache)
    finally:
        _probing.reset(token)
    return cache.result()


class ProbeCache(Cache):
    """An empty cache that notes which layer wants what kept, and which module wants it."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._arrival: Arrival | None = None
        self._attended: dict[int, _Attended] = {}
        self._states: dict[tuple[int, str], StateShape] = {}
        self._running: list[torch.nn.Module] = []
        self._keepers: dict[int, list[torch.nn.Module]] = {}

    @contextmanager
    def watching(self, network: torch.nn.Module) -> Iterator[None]:
        """Know within the block which modules of `network` run."""
        handles = []
        for module in network.modules():
            handles.append(module.register_forward_pre_hook(lambda m, _: self._running.append(m)))
            handles.append(module.register_forward_hook(lambda *_: self._leave()))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _leave(self) -> None:
        self._running.pop()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Note what is given to keep."""
        self._arrival = Arrival(layer_idx, key_states, value_states)
        return key_states, value_states

    def attend(
        self, module: torch.nn.Module, key: torch.Tensor, value: torch.Tensor, window: int | None
    ) -> None:
        """Note what reaches attention."""
        arrival, self._arrival = self._arrival, None
        if arrival is None:
            raise ValueError(
                "a layer attends to KV that it has not given to the cache, such as another layer's"
            )
        if arrival.layer in self._attended:
            raise ValueError(f"layer {arrival.layer} attends more than once in a forward")
        latent = _is_latent(module, arrival, key, value)
        shape = LayerShape(heads=key.shape[1], key_dim=key.shape[3], value_dim=value.shape[3])
        if latent:
            shape = LayerShape(1, arrival.key.shape[3] + arrival.value.shape[3], 0)
        self._attended[arrival.layer] = _Attended(shape, window or None, latent)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """None: this is the first forward."""
        self._note_keeper(layer_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """None: this is the first forward."""
        self._note_keeper(layer_idx)

    def update_conv_state(
        self,
        conv_states: torch.Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Note its shape: the kernel's width, or what is given if the layer has cut or padded it to that."""
        self._note_keeper(layer_idx)
        width = conv_kernel_size or conv_states.shape[-1]
        self._note_state(
            layer_idx, conv_name(state_idx), (*conv_states.shape[1:-1], width), conv_states.dtype
        )
        return F.pad(conv_states, (max(0, width - conv_states.shape[-1]), 0))

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """Note its shape."""
        self._note_keeper(layer_idx)
        name = recurrent_name(state_idx)
        self._note_state(layer_idx, name, tuple(recurrent_states.shape[1:]), recurrent_states.dtype)
        return recurrent_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """No."""
        return False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """As of an empty cache."""
        return query_length, 0

    def _note_keeper(self, layer: int) -> None:
        """The mixer is the innermost module within which all of a layer's state is asked for."""
        known = self._keepers.setdefault(layer, list(self._running))
        common = [a for a, b in zip(known, self._running, strict=False) if a is b]
        self._keepers[layer] = common

    def _note_state(self, layer: int, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        kept = StateShape(layer, name, shape, str(dtype).removeprefix("torch."), dtype.itemsize)
        if self._states.setdefault((layer, name), kept) != kept:
            raise ValueError(f"layer {layer} keeps {name} in more than one shape")

    def result(self) -> Probed:
        """All that was noted. Errors as `probe`."""
        if self._arrival is not None:
            raise ValueError(
                "its layers attend by code of their own, not through transformers' AttentionInterface"
            )
        if not self._attended:
            raise ValueError("no layer keeps KV, and cached state is found by pages of KV")
        latent = {layer.latent for layer in self._attended.values()}
        if len(latent) > 1:
            raise ValueError("some layers keep compressed latents and others KV")
        windows = {layer.window for layer in self._attended.values()}
        kinds = dict.fromkeys(self._attended, Attention.FULL)
        if None in windows:
            kinds.update({n: Attention.SLIDING for n, layer in self._attended.items() if layer.window})
        members = {kind: sorted(n for n in kinds if kinds[n] is kind) for kind in Attention}
        places = {n: Place(kind, i) for kind, layers in members.items() for i, n in enumerate(layers)}
        finite = tuple(sorted(window for window in windows if window is not None))
        shapes = ModelShapes(
            full=tuple(self._attended[n].shape for n in members[Attention.FULL]),
            sliding=tuple(self._attended[n].shape for n in members[Attention.SLIDING]),
            window=max(finite) if members[Attention.SLIDING] else None,
            states=tuple(self._states[key] for key in sorted(self._states)),
            places=places,
            latent=latent == {True},
        )
        mixers = {id(modules[-1]): modules[-1] for modules in self._keepers.values()}
        return Probed(shapes, finite, tuple(mixers.values()))


def _is_latent(module: Any, arrival: Arrival, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the cache gets what `module` itself can expand to the K and V that reach attention."""
    if arrival.key.shape == key.shape and arrival.value.shape == value.shape:
        return False
    try:
        expanded = module.expand_kv(arrival.key, arrival.value)
    except AttributeError:
        return False
    return bool(expanded[0].shape == key.shape and expanded[1].shape == value.shape)


def _probe_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    sliding_window: int | None = None,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    """Note what comes and answer zeros [batch, tokens, heads, value_dim]."""
    _probing.get().attend(module, key, value, sliding_window)
    return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None
