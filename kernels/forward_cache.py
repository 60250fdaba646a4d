"""What a model takes for its cache: transformers' cache interface over one forward of ours.

Every layer tells its cache what it wants kept, under its own number even where several layers share a module. So this
is where KV, compressed latents and recurrent state change hands, without a change to the model's code.
"""

from typing import Any

import torch
from transformers import Cache

from stratakv.kernels.context import Arrival, ForwardContext, StatePart


class ForwardCache(Cache):
    """The cache of one forward.

    KV is handed on to the attention that follows, which stores it and reads the rest by itself. Recurrent state is
    served for one `StatePart` at a time, between `begin` and `end`: each tensor is [requests, *shape], a copy of the
    working states, written back at the end. Every request has a state: before its first token it is zeros.
    """

    def __init__(self, forward: ForwardContext):
        super().__init__(layers=[])
        self._forward = forward
        self._slots: torch.Tensor | None = None
        self._open: dict[int, dict[str, torch.Tensor]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Note what layer `layer_idx` keeps, and give back nothing older: what is cached is read by attention."""
        self._forward.arrival = Arrival(layer_idx, key_states, value_states)
        return key_states, value_states

    def begin(self, part: StatePart) -> None:
        """Serve the states of `part` from now on."""
        self._slots = part.slots
        self._open = {}

    def end(self) -> None:
        """Write back the states of the current part."""
        for layer, held in self._open.items():
            for name, tensor in held.items():
                self._pool(layer)[name].index_copy_(0, self._current_slots(), tensor)
        self._slots = None

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor:
        """The last inputs of a convolution. May be changed in place."""
        return self._held(layer_idx)[conv_name(state_idx)]

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """The state of a recurrence, None if the layer has none. May be changed in place."""
        return self._held(layer_idx).get(recurrent_name(state_idx))

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """Take new inputs [requests, channels, tokens]; returns all that the convolution needs, older ones first."""
        state = self.get_conv_state(layer_idx, state_idx)
        inputs = torch.cat([state, conv_states], dim=-1)
        state.copy_(inputs[..., -state.shape[-1] :])
        return inputs

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """Take the new state, and return it."""
        state = self._held(layer_idx)[recurrent_name(state_idx)]
        return state.copy_(recurrent_states)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Always: before the first token it is zeros."""
        return True

    def is_recording_past(self, layer_idx: int) -> bool:
        """Never: states of the past are checkpoints, not the cache's business."""
        return False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: requests of several lengths share a forward, and their positions are given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """No mask is made; sizes of one over the new tokens alone."""
        return query_length, 0

    def _held(self, layer: int) -> dict[str, torch.Tensor]:
        if layer not in self._open:
            slots = self._current_slots()
            self._open[layer] = {
                name: memory.index_select(0, slots) for name, memory in self._pool(layer).items()
            }
        return self._open[layer]

    def _pool(self, layer: int) -> dict[str, torch.Tensor]:
        states = self._forward.memory.states
        if states is None or layer not in states.by_layer:
            raise RuntimeError(
                f"layer {layer} keeps recurrent state that was not seen when the model was probed"
            )
        return states.by_layer[layer]

    def _current_slots(self) -> torch.Tensor:
        if self._slots is None:
            raise RuntimeError("recurrent state was asked for outside a mixer that was found by probing")
        return self._slots


def conv_name(index: int) -> str:
    """The name of a layer's convolution state number `index`."""
    return f"conv.{index}"


def recurrent_name(index: int) -> str:
    """The name of a layer's recurrent state number `index`."""
    return f"recurrent.{index}"
