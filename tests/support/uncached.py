"""What a model says with no cache at all: the prompt in one piece, then token after token, one request at a time.

Where an answer differs, the first difference must lie where the two best logits were closer than twice the rounding
error; such ties are counted and printed.
"""

from collections.abc import Sequence

import torch

from stratakv.actors.worker.model import Model
from stratakv.cluster.plan import Row
from stratakv.kernels.memory import DeviceMemory

ROUNDING = 1e-4
"""The largest relative difference of logits that batching and chunking may make in float32."""


class Uncached:
    """Works out answers of `model` in memory of its own, and how close the two best logits were at every step."""

    def __init__(self, model: Model, page_size: int):
        self._model = model
        self._page_size = page_size
        self._known: dict[tuple[int, ...], torch.Tensor] = {}
        self.ties = 0

    def logits(self, tokens: Sequence[int], output: Sequence[int]) -> torch.Tensor:
        """float32 [len(output), vocab]: what each token of `output` was drawn from, going on as `output` did."""
        key = (*tokens, -1, *output)
        if key not in self._known:
            self._known[key] = self._compute(list(tokens), output)
        return self._known[key]

    def _compute(self, tokens: list[int], output: Sequence[int]) -> torch.Tensor:
        count = -(-(len(tokens) + len(output)) // self._page_size)
        shapes = self._model.shapes
        memory = DeviceMemory.build(
            shapes, full=count, sliding=count * bool(shapes.sliding), states=1 * bool(shapes.states),
            page_size=self._page_size, dtype=self._model.dtype,
        )  # fmt: skip
        rows, start, fresh = [], 0, tokens
        for token in output:
            pages = tuple(range(-(-(start + len(fresh)) // self._page_size)))
            row = Row(
                tuple(fresh), start, pages, True, pages if shapes.sliding else (), 0 if shapes.states else -1
            )
            rows.append(self._model.forward([row], memory)[0])
            start, fresh = start + len(fresh), [token]
        return torch.stack(rows)

    def answer(self, tokens: Sequence[int], count: int) -> list[int]:
        """`count` greedy tokens after `tokens`."""
        output: list[int] = []
        for _ in range(count):
            output.append(int(self._compute(list(tokens), [*output, 0])[-1].argmax()))
        return output

    def check(self, tokens: Sequence[int], answer: Sequence[int]) -> None:
        """`answer` must be the greedy one, up to a tie."""
        for position, (token, logits) in enumerate(zip(answer, self.logits(tokens, answer), strict=True)):
            if int(logits.argmax()) == token:
                continue
            best = logits.topk(2).values
            margin = float((best[0] - best[1]) / logits.abs().max())
            assert margin < 2 * ROUNDING, (
                f"token {position} is {token}, not {int(logits.argmax())}, and it is no tie"
            )
            self.ties += 1
            print(f"tie at token {position}: the two best logits were {margin:.1e} apart")
            return

    def check_logits(
        self, tokens: Sequence[int], answer: Sequence[int], seen: Sequence[torch.Tensor]
    ) -> float:
        """Every one of `seen`, the logits that `answer` was drawn from, must be that of the uncached run. Returns the
        largest relative difference."""
        expected = self.logits(tokens, answer)
        assert len(seen) == len(expected)
        worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(seen, expected, strict=True))
        assert worst <= ROUNDING, f"logits differ by {worst:.1e} of the largest"
        return worst
