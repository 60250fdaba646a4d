"""Recurrent state of running requests: what Mamba, delta-rule and short-convolution layers carry from token to token.

A slot is one request's state of all layers. It is overwritten with every token, so a request that reuses a history
begins with a copy of the checkpoint at its end (checkpoints.py), never with the checkpoint itself.
"""

from collections.abc import Sequence

import torch

from stratakv.kernels.shapes import StateShape


class StatePool:
    """Working states of `slots` requests.

    `tensors[i]` is [slots, *shapes[i].shape] in the dtype that shape names. `by_layer` finds a layer's tensors by
    transformers' number of the layer and their name. `bytes_per_slot` is the size of a checkpoint.
    """

    def __init__(self, shapes: Sequence[StateShape], slots: int, device: torch.device | str = "cpu"):
        """Take the memory, zeroed. ValueError when there is no slot or nothing to keep."""
        if slots < 1 or not shapes:
            raise ValueError(f"a state pool needs a slot and a shape, not {slots} and {len(shapes)}")
        self.shapes = tuple(shapes)
        self.slots = slots
        self.device = torch.device(device)
        self.bytes_per_slot = sum(shape.bytes() for shape in shapes)
        self.tensors = [
            torch.zeros(slots, *shape.shape, dtype=getattr(torch, shape.dtype), device=self.device)
            for shape in shapes
        ]
        self.by_layer: dict[int, dict[str, torch.Tensor]] = {}
        for shape, tensor in zip(self.shapes, self.tensors, strict=True):
            self.by_layer.setdefault(shape.layer, {})[shape.name] = tensor
        self._bytes = [tensor.flatten(1).view(torch.uint8) for tensor in self.tensors]

    def clear(self, slots: Sequence[int]) -> None:
        """Make `slots` the state before any token: zeros, from which every linear recurrence begins."""
        for tensor in self.tensors if slots else ():
            tensor[list(slots)] = 0

    def pack(self, slot: int) -> torch.Tensor:
        """A copy of the state in `slot`, uint8 [bytes_per_slot]: tensor after tensor, each in row-major order."""
        return torch.cat([memory[slot] for memory in self._bytes])

    def unpack(self, slot: int, packed: torch.Tensor) -> None:
        """Put `packed`, uint8 [bytes_per_slot] on any device, into `slot`. ValueError for another length."""
        if packed.shape != (self.bytes_per_slot,):
            raise ValueError(f"a state has {self.bytes_per_slot} bytes, not {tuple(packed.shape)}")
        parts = torch.split(packed.to(self.device), [memory.shape[1] for memory in self._bytes])
        for memory, part in zip(self._bytes, parts, strict=True):
            memory[slot] = part
