"""A model without weights with every kind of state: its logits are a digest of all that it reads, full pages, the
window and the recurrent state, so a wrong byte in any of them is a wrong token."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from stratakv.cluster.plan import Row
from stratakv.kernels.memory import DeviceMemory
from stratakv.kernels.pool import DevicePool
from stratakv.kernels.shapes import Attention, LayerShape, ModelShapes, Place, StateShape

VOCAB = 101
WINDOW = 7

_ROW = LayerShape(1, 2, 0)
_STATE = StateShape(2, "sum", (2,), "float32", 4)
_PLACES = {0: Place(Attention.FULL, 0), 1: Place(Attention.SLIDING, 0)}

SLIDING = ModelShapes((_ROW,), (_ROW,), WINDOW, places=_PLACES)
RECURRENT = ModelShapes((_ROW,), states=(_STATE,), places={0: _PLACES[0]})
BOTH = ModelShapes((_ROW,), (_ROW,), WINDOW, (_STATE,), _PLACES)


class SideModel:
    """A token's row is (token, position); the state is a running hash of all tokens and their number."""

    def forward(self, rows: Sequence[Row], memory: DeviceMemory) -> torch.Tensor:
        logits = []
        for row in rows:
            end = row.start + len(row.tokens)
            fresh = torch.tensor([[t, row.start + i] for i, t in enumerate(row.tokens)], dtype=torch.float32)
            parts = [self._attend(memory.full, row, 0, row.pages, fresh)]
            if memory.sliding is not None:
                first = (len(row.pages) - len(row.window)) * memory.page_size
                seen = self._attend(memory.sliding, row, first, row.window, fresh)
                low = max(0, end - WINDOW)
                assert first <= max(0, row.start - WINDOW + 1), "the window is too short"
                parts.append(seen[low - first :])
            if memory.states is not None:
                parts.append(self._advance(memory.states.tensors[0], row))
            if row.sample:
                logits.append(draw(parts))
        return torch.tensor(np.array(logits), dtype=torch.float32)

    def _attend(
        self, pool: DevicePool, row: Row, first: int, pages: Sequence[int], fresh: torch.Tensor
    ) -> torch.Tensor:
        """Write the new rows to `pages`, which begin at token `first`; returns all rows up to the last new one."""
        where = torch.tensor([page * pool.page_size + i for page in pages for i in range(pool.page_size)])
        pool.key_rows[0][where[row.start - first : row.start - first + len(fresh)], 0] = fresh
        return pool.key_rows[0][where[: row.start - first + len(fresh)], 0]

    def _advance(self, states: torch.Tensor, row: Row) -> torch.Tensor:
        state = (0.0, 0.0) if row.start == 0 else tuple(states[row.state].tolist())
        states[row.state] = torch.tensor(after(state, row.tokens))
        return states[row.state][None]


def after(state: tuple[float, ...], tokens: Sequence[int]) -> tuple[float, float]:
    """The recurrent state after `tokens` more."""
    total, count = state
    for token in tokens:
        total, count = (total * 31 + token) % 100_003, count + 1
    return total, count


def draw(parts: Sequence[torch.Tensor]) -> np.ndarray:
    """Logits from all that was read."""
    digest = hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).digest()
    return np.random.default_rng(list(digest)).normal(size=VOCAB)


def expected_output(shapes: ModelShapes, prompt: list[int], count: int) -> list[int]:
    """What the model says greedily after `prompt`, worked out without pools or caches."""
    tokens = list(prompt)
    for _ in range(count):
        rows = torch.tensor([[t, i] for i, t in enumerate(tokens)], dtype=torch.float32)
        parts = [rows]
        if shapes.sliding:
            parts.append(rows[max(0, len(tokens) - WINDOW) :])
        if shapes.states:
            parts.append(torch.tensor(after((0.0, 0.0), tokens))[None])
        tokens.append(int(draw(parts).astype(np.float32).argmax()))
    return tokens[len(prompt) :]
