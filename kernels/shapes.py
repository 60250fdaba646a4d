"""The shapes of what a model caches, as every floor above speaks of them. No torch, so the tree's floor may use them.

They are probed from the model when it is loaded (probe.py), never computed from its config.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod


@dataclass(frozen=True, slots=True)
class LayerShape:
    """KV of one attention layer on one rank.

    `heads` is the number of KV heads held here; `key_dim` and `value_dim` are elements per head and token. A layer that
    caches a latent (MLA) has one head, the latent and its rotary part as `key_dim`, and a `value_dim` of 0.
    """

    heads: int
    key_dim: int
    value_dim: int

    def elements_per_token(self) -> int:
        """Elements of K and V that one token takes in this layer."""
        return self.heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class StateShape:
    """One tensor of recurrent state that layer `layer` keeps for one request.

    `layer` counts as transformers does; `name` tells the tensors of a layer apart, such as `conv.0`. `dtype` is torch's
    name, such as `float32`, with `itemsize` bytes an element.
    """

    layer: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int

    def bytes(self) -> int:
        """What the tensor takes."""
        return prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True)
class Share:
    """Share `index` of `of` equal shares of the KV heads that a rank holds. The default is all of them."""

    index: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise ValueError(f"there is no share {self.index} of {self.of}; shares are numbered from 0")


class Attention(StrEnum):
    """How far the queries of a layer see, and so which pages of it are kept."""

    FULL = "full"
    """Every token before them: all pages of a history."""
    SLIDING = "sliding"
    """A window: the last pages of a history."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the KV of an attention layer is: entry `index` of the shapes, and of the pool, of its kind."""

    kind: Attention
    index: int


@dataclass(frozen=True)
class ModelShapes:
    """All that one rank of a model caches.

    `full` and `sliding` have an entry per attention layer of the kind, in layer order; `window` is the most tokens that
    a query of a sliding layer sees, itself included. `states` are the tensors of one request's recurrent state, in the
    order in which a checkpoint holds them. `places` finds a layer by the number transformers gives it. `latent` says
    that the KV is compressed latents, which are the same on every rank.

    A model all of whose attention layers slide has them in `full`: its pages are kept whole, since every other kind of
    state hangs on the pages of `full`.
    """

    full: tuple[LayerShape, ...]
    sliding: tuple[LayerShape, ...] = ()
    window: int | None = None
    states: tuple[StateShape, ...] = ()
    places: Mapping[int, Place] = field(default_factory=dict, hash=False)
    latent: bool = False

    def __post_init__(self) -> None:
        if not self.full:
            raise ValueError("a model without a layer of full attention has no pages to hang its state on")
        if bool(self.sliding) != bool(self.window):
            raise ValueError(
                f"{len(self.sliding)} sliding layers do not go with a window of {self.window} tokens"
            )

    @classmethod
    def plain(cls, shapes: Sequence[LayerShape]) -> "ModelShapes":
        """A model whose every layer is full attention, numbered from 0."""
        places = {layer: Place(Attention.FULL, layer) for layer in range(len(shapes))}
        return cls(tuple(shapes), places=places)

    def states_bytes(self) -> int:
        """Bytes of one checkpoint: all recurrent state of one request. 0 when the model keeps none."""
        return sum(state.bytes() for state in self.states)
