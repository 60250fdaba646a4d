"""Proof, each time a model is loaded, that it computes the same over our memory as by itself.

Families differ in ways that no list keeps up with (a mask of their own, state that is not in the cache or that a chunk
does not continue from, positions from the cache). A model that is served wrongly is worse than one that is refused, so
two prompts decide: a short one in one piece and in several, and, if anything in the model has a reach (a sliding
window, a chunk of attention), one that is just longer than that. Both are continued from a checkpoint that has been to
the host, with only those pages of the window that the rest still sees. Reaches beyond `LONGEST` tokens are not crossed,
since that would take minutes on a CPU: what differs there is a number that comes with each call of the attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from stratakv.actors.worker.checkpoint import ModelError
from stratakv.cluster.plan import Row
from stratakv.kernels.checkpoints import load_state
from stratakv.kernels.memory import DeviceMemory
from stratakv.kernels.shapes import ModelShapes
from stratakv.kernels.work import first_seen

LONGEST = 1100
"""Tokens of the longer prompt at most."""

_SHORT = 24
_PAGE_SIZE = 4
_PIECES = (13, 23, _SHORT)
"""Where the short prompt is cut: a chunk, a chunk on cached tokens that ends within a page, and a decode step."""
_BEYOND = 24
"""Tokens of the longer prompt after the longest reach that it crosses."""
_CONTINUED = 8
"""Tokens, a whole number of pages, that are computed on a restored checkpoint."""

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 8e-2, torch.float16: 2e-2}
"""Largest difference that is rounding, as a share of the largest logit."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A prompt and what transformers makes of it by itself: float32 logits [n, vocab] of its last n tokens."""

    tokens: tuple[int, ...]
    logits: torch.Tensor


class Served(Protocol):
    """What is checked: a `Model`."""

    shapes: ModelShapes
    vocab_size: int
    dtype: torch.dtype
    device: torch.device

    def forward(self, rows: Sequence[Row], memory: DeviceMemory) -> torch.Tensor:
        """As `Model.forward`."""


def vocab_size(network: Any) -> int:
    """Token ids that the transformers model `network` has an embedding for."""
    return int(network.get_input_embeddings().weight.shape[0])


def references(network: Any, windows: Sequence[int]) -> list[Reference]:
    """What the transformers model `network`, as it is, makes of the check's prompts, uncached: a short one, and one
    that crosses the largest of `windows` and of the chunks of its config that is not too large.

    ModelError when it does not run on a prompt.
    """
    found = [_reference(network, _SHORT, keep=_SHORT)]
    chunk = network.config.get_text_config().to_dict().get("attention_chunk_size")
    reaches = [reach for reach in (*windows, chunk or 0) if 0 < reach <= LONGEST - _BEYOND]
    if reaches:
        found.append(_reference(network, max(reaches) + _BEYOND, keep=1))
    return found


def check_served(model: Served, expected: Sequence[Reference]) -> None:
    """Compare `model` with the `references` of its network. ModelError names the check that fails and by how much."""
    short = expected[0]
    trial = _Trial(model, short.tokens)
    _compare(
        "the paged forward of a prompt and that of transformers",
        trial.run(0, _SHORT),
        short,
        _SHORT,
        model.dtype,
    )
    trial = _Trial(model, short.tokens)
    start = 0
    for end in _PIECES:
        what = f"a prompt cut at token {start} and the whole one"
        _compare(what, trial.run(start, end), short, end, model.dtype)
        start = end
    for reference in expected:
        end = len(reference.tokens)
        cut = (end - _CONTINUED) // _PAGE_SIZE * _PAGE_SIZE
        trial = _Trial(model, reference.tokens)
        trial.run(0, cut)
        trial.restore()
        what = f"a prompt of {end} tokens continued from a checkpoint at token {cut} and the whole one"
        _compare(what, trial.run(cut, end), reference, end, model.dtype)


class _Trial:
    """One prompt over memory of its own, whose pages lie scattered."""

    def __init__(self, model: Served, tokens: tuple[int, ...]):
        self._model = model
        self._tokens = tokens
        pages = -(-len(tokens) // _PAGE_SIZE)
        shapes = model.shapes
        states = 2 if shapes.states else 0
        self._memory = DeviceMemory.build(
            shapes, full=pages, sliding=pages if shapes.sliding else 0, states=states, checkpoints=states,
            page_size=_PAGE_SIZE, dtype=model.dtype, device=model.device,
        )  # fmt: skip
        odd = list(range(1, pages, 2))
        self._slots = odd[::-1] + list(range(0, pages, 2))
        self._state = 0 if states else -1

    def run(self, start: int, end: int) -> torch.Tensor:
        """Logits [1, vocab] of token `end` - 1, computed on what is there of the tokens before `start`."""
        pages = tuple(self._slots[: -(-end // _PAGE_SIZE)])
        window: tuple[int, ...] = ()
        if self._memory.sliding is not None:
            window = pages[first_seen(start, self._model.shapes.window) // _PAGE_SIZE :]
        row = Row(self._tokens[start:end], start, pages, True, window, self._state)
        return self._model.forward([row], self._memory)

    def restore(self) -> None:
        """Take the recurrent state through a checkpoint and a host block to another slot, and spoil where it was."""
        states, checkpoints = self._memory.states, self._memory.checkpoints
        if states is None or checkpoints is None:
            return
        host = torch.zeros(1, states.bytes_per_slot, dtype=torch.uint8)
        checkpoints.save(states, self._state, (1,))
        checkpoints.backup(host, 0, (1,), 0)
        states.clear(range(states.slots))
        self._state = 1
        load_state(states, host, 0, 0, self._state)


def _reference(network: Any, length: int, keep: int) -> Reference:
    tokens = tuple((7919 * i + 11) % vocab_size(network) for i in range(length))
    positions = torch.arange(length, device=network.device)[None]
    try:
        with torch.inference_mode():
            logits: torch.Tensor = network(
                input_ids=torch.tensor([tokens], device=network.device), position_ids=positions, use_cache=False,
                logits_to_keep=keep,
            ).logits  # fmt: skip
            return Reference(tokens, logits[0].float())
    except (ValueError, TypeError, RuntimeError) as error:
        raise ModelError(
            f"model.path: {network.config.model_type} does not run on a plain text prompt ({error}); give a causal LM"
        ) from error


def _compare(what: str, ours: torch.Tensor, reference: Reference, end: int, dtype: torch.dtype) -> None:
    """`ours` [1, vocab] with the reference's logits of token `end` - 1."""
    last = len(reference.tokens) - end
    expected = reference.logits[len(reference.logits) - 1 - last][None]
    if ours.shape != expected.shape:
        raise ModelError(
            f"model.path: the model's logits have shape {tuple(ours.shape)} where {tuple(expected.shape)} was asked "
            "for; this model cannot be served"
        )
    difference = ((ours - expected).abs().max() / expected.abs().max().clamp_min(1e-6)).item()
    if not difference <= _TOLERANCE[dtype]:
        raise ModelError(
            f"model.path: {what} differ by {difference:.2g} of the largest logit, more than {_TOLERANCE[dtype]:.0e}; "
            "the model keeps state or masks that this version does not serve"
        )
