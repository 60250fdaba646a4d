"""All cached state that one rank has on its device: a pool per kind of attention, working states and checkpoints.

It is only memory. What lies in which slot is decided by the page tree and arrives with the plan of a step.
"""

from dataclasses import dataclass

import torch

from stratakv.kernels.checkpoints import FixedCheckpoints, UnifiedCheckpoints
from stratakv.kernels.pool import DevicePool
from stratakv.kernels.shapes import ModelShapes
from stratakv.kernels.states import StatePool


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a model of these `shapes`. What the model has no use for is None."""

    shapes: ModelShapes
    full: DevicePool
    sliding: DevicePool | None
    states: StatePool | None
    checkpoints: FixedCheckpoints | UnifiedCheckpoints | None
    page_size: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def build(
        cls,
        shapes: ModelShapes,
        *,
        full: int,
        sliding: int = 0,
        states: int = 0,
        checkpoints: int = 0,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        unified: bool = False,
    ) -> "DeviceMemory":
        """Take the memory, zeroed: so many page slots, working states and checkpoints.

        With `unified`, checkpoints lie in page slots of the full pool and `checkpoints` must be 0. ValueError when
        slots are given for what the model does not keep, or none for what it does (checkpoints may be none).
        """
        device = torch.device(device)
        _check("sliding", sliding, wanted=bool(shapes.sliding))
        _check("states", states, wanted=bool(shapes.states))
        if checkpoints and (unified or not shapes.states):
            why = "they share the full pool" if unified else "the model keeps no recurrent state"
            raise ValueError(f"{checkpoints} slots for checkpoints, but {why}")
        pool = DevicePool(shapes.full, full, page_size, dtype, device)
        size = shapes.states_bytes()
        kept: FixedCheckpoints | UnifiedCheckpoints | None = None
        if size and unified:
            kept = UnifiedCheckpoints(pool, size)
        elif checkpoints:
            kept = FixedCheckpoints(checkpoints, size, device)
        return cls(
            shapes=shapes,
            full=pool,
            sliding=DevicePool(shapes.sliding, sliding, page_size, dtype, device) if sliding else None,
            states=StatePool(shapes.states, states, device) if states else None,
            checkpoints=kept,
            page_size=page_size,
            dtype=dtype,
            device=device,
        )


def _check(name: str, slots: int, *, wanted: bool) -> None:
    if wanted != (slots > 0):
        raise ValueError(f"{name}: {slots} slots for a model that {'needs some' if wanted else 'needs none'}")
