"""How the heads of a model are dealt out over the ranks of a replica, and which shares of a page each rank has.

Every rank has an equal run of the query heads and the KV heads that these read. With more ranks than KV heads, several
ranks in a row have a copy of the same KV head. Pure arithmetic: no torch, so that a start can be refused early.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stratakv.kernels.shapes import LayerShape, ModelShapes
from stratakv.storage.identity import describe_shapes
from stratakv.storage.tiers import Component


class Indivisible(ValueError):
    """The model's heads cannot be dealt out over so many ranks. Names tensor_parallel and what works."""


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """`heads` query heads and `kv_heads` KV heads over `ranks` ranks. Indivisible if they do not divide."""

    heads: int
    kv_heads: int
    ranks: int

    def __post_init__(self) -> None:
        if not _divides(self.heads, self.kv_heads, self.ranks):
            works = [str(n) for n in range(1, self.heads + 1) if _divides(self.heads, self.kv_heads, n)]
            raise Indivisible(
                f"tensor_parallel is {self.ranks}, but this model has {self.heads} attention heads and "
                f"{self.kv_heads} KV heads, which can be split over {', '.join(works)} ranks; set --tensor-parallel "
                "to one of these"
            )

    @property
    def groups(self) -> int:
        """Shares of the KV heads that differ: one per rank, or one per KV head when there are more ranks."""
        return min(self.ranks, self.kv_heads)

    @property
    def copies(self) -> int:
        """How many ranks have the same KV heads."""
        return self.ranks // self.groups

    def group(self, rank: int) -> int:
        """Which of the `groups` shares `rank` has."""
        return rank // self.copies

    def kv_head(self, rank: int) -> int:
        """The first KV head that `rank` has."""
        return self.group(rank) * (self.kv_heads // self.groups)

    def writes(self, rank: int) -> bool:
        """Whether `rank` is the one to store its KV heads: the first of those that have them."""
        return rank % self.copies == 0

    def stored_groups(self, rank: int, head_groups: int | None) -> range:
        """Which of `head_groups` stored shares (by default `groups`) are within what `rank` has.

        ValueError, naming store.head_groups and tensor_parallel, if the stored shares cut across ranks.
        """
        stored = self.groups if head_groups is None else head_groups
        if stored % self.groups or self.kv_heads % stored:
            raise ValueError(
                f"store.head_groups is {stored} and tensor_parallel is {self.ranks}: with {self.kv_heads} KV heads "
                f"it must be a multiple of {self.groups} that divides {self.kv_heads}"
            )
        each = stored // self.groups
        first = self.group(rank) * each
        return range(first, first + each)

    def whole(self, shapes: Sequence[LayerShape]) -> list[LayerShape]:
        """The shapes of the whole model, of those that one rank's probe saw."""
        return [replace(shape, heads=shape.heads * self.groups) for shape in shapes]


def split_of(config: Mapping[str, Any], ranks: int) -> HeadSplit | None:
    """The split of the model with this config.json; None if it does not say how many heads there are."""
    text = config.get("text_config") or config
    heads = text.get("num_attention_heads")
    if not isinstance(heads, int):
        return None
    kv_heads = text.get("num_key_value_heads")
    return HeadSplit(heads, kv_heads if isinstance(kv_heads, int) else heads, ranks)


def _divides(heads: int, kv_heads: int, ranks: int) -> bool:
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def describe_components(shapes: ModelShapes, split: HeadSplit) -> tuple[str, ...]:
    """A line per component for the identity, with the heads of the whole model."""
    lines = []
    for component, layers in ((Component.FULL, shapes.full), (Component.SLIDING, shapes.sliding)):
        if layers:
            whole = list(layers) if shapes.latent else split.whole(layers)
            lines.append(describe_shapes(component, whole))
    if shapes.window is not None:
        lines[-1] += f", window {shapes.window}"
    if shapes.states:
        tensors = (f"{state.name} {'x'.join(map(str, state.shape))} {state.dtype}" for state in shapes.states)
        lines.append(f"{Component.RECURRENT}: {', '.join(tensors)}")
    return tuple(lines)
