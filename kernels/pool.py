"""The device pool: KV of every layer, layer-first, in slots of one page each.

It is only memory. Which page lies in which slot is decided by the page tree and arrives with the plan of a step.
"""

from collections.abc import Sequence

import torch

from stratakv.kernels.shapes import LayerShape


def bytes_per_page(shapes: Sequence[LayerShape], page_size: int, dtype: torch.dtype) -> int:
    """Bytes of K and V that one page of `page_size` tokens takes over all layers."""
    return page_size * dtype.itemsize * sum(shape.elements_per_token() for shape in shapes)


class DevicePool:
    """K and V of `slots` pages for each layer.

    `keys[l]` is [slots, page_size, heads, key_dim] and `values[l]` [slots, page_size, heads, value_dim], contiguous.
    `key_rows[l]` and `value_rows[l]` are views of them, [slots * page_size, heads, dim]: row `slot * page_size + i`
    holds token i of the page in `slot`. `key_heads[l]` and `value_heads[l]` are the same views with the heads first,
    as attention takes them: [1, heads, slots * page_size, dim]. `token_bytes` is what a token takes in the largest
    layer.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        slots: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ):
        """Take the memory: `bytes_per_page(...) * slots`, zeroed. ValueError when there would be no slot."""
        if slots < 1 or page_size < 1:
            raise ValueError(f"a pool needs a slot and a page size of 1 or more, not {slots} and {page_size}")
        self.shapes = tuple(shapes)
        self.slots = slots
        self.page_size = page_size
        self.dtype = dtype
        self.device = torch.device(device)
        self.token_bytes = dtype.itemsize * max(shape.elements_per_token() for shape in shapes)
        self.keys = [self._memory(shape.heads, shape.key_dim) for shape in shapes]
        self.values = [self._memory(shape.heads, shape.value_dim) for shape in shapes]
        self.key_rows = [keys.flatten(0, 1) for keys in self.keys]
        self.value_rows = [values.flatten(0, 1) for values in self.values]
        self.key_heads = [rows.transpose(0, 1)[None] for rows in self.key_rows]
        self.value_heads = [rows.transpose(0, 1)[None] for rows in self.value_rows]

    def _memory(self, heads: int, dim: int) -> torch.Tensor:
        return torch.zeros(self.slots, self.page_size, heads, dim, dtype=self.dtype, device=self.device)
