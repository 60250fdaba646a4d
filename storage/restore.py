"""Which prefixes of a prompt a tier can give back, when a page has several kinds of state with rules of their own.

The head asks here with what the store says is there, before it starts a prefetch. A minimum over components is not
enough: a prefix of 8 pages and one of 16 may be restorable, and the one of 12 not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """What must be there of a component for a prefix to be usable."""

    ALL_PAGES = "all pages"
    """Every page of the prefix: full attention reads all of it."""
    TRAILING = "trailing"
    """The last pages of the prefix: a sliding window reads no further back."""
    EXACT = "exact"
    """The last page alone: a recurrent state is a checkpoint, and stands for all that came before."""


@dataclass(frozen=True, slots=True)
class HitPolicy:
    """A rule; `pages` is how many pages TRAILING needs (1 or more), fewer at the root."""

    rule: Rule
    pages: int = 0

    def __post_init__(self) -> None:
        if (self.rule is Rule.TRAILING) != (self.pages > 0):
            raise ValueError(f"the rule {self.rule} over {self.pages} pages: TRAILING alone needs 1 or more")


ALL_PAGES = HitPolicy(Rule.ALL_PAGES)
EXACT = HitPolicy(Rule.EXACT)


def trailing(window: int, page_size: int) -> HitPolicy:
    """The policy of a sliding window of `window` tokens, of which the token itself is one."""
    return HitPolicy(Rule.TRAILING, max(1, -(-(window - 1) // page_size)))


@dataclass(frozen=True, slots=True)
class Presence:
    """Which pages of a chain a component has, first page first. Pages beyond the end of `bitmap` are not there."""

    policy: HitPolicy
    bitmap: Sequence[bool]


@dataclass(frozen=True, slots=True)
class Restorable:
    """`lengths[n]`: whether the first n pages can be restored, n from 0 (always) to all; `longest` is the largest."""

    lengths: tuple[bool, ...]
    longest: int

    def longest_upto(self, pages: int) -> int:
        """The longest restorable prefix of no more than `pages` pages."""
        return max(n for n, usable in enumerate(self.lengths[: max(pages, 0) + 1]) if usable)


def restorable(pages: int, components: Iterable[Presence]) -> Restorable:
    """Which prefixes of a chain of `pages` pages every one of `components` can restore. O(pages) each."""
    lengths = [True] * (pages + 1)
    for component in components:
        run = 0
        for length in range(1, pages + 1):
            here = length <= len(component.bitmap) and bool(component.bitmap[length - 1])
            run = run + 1 if here else 0
            lengths[length] &= run >= _needed(component.policy, length)
    return Restorable(tuple(lengths), max(length for length, usable in enumerate(lengths) if usable))


def in_every(bitmaps: Sequence[Sequence[bool]]) -> list[bool]:
    """The pages that all of `bitmaps` have: one bitmap for a component from those of its groups."""
    return [all(bits) for bits in zip(*bitmaps, strict=False)]


def _needed(policy: HitPolicy, length: int) -> int:
    """How many pages in a row, ending at `length`, make that prefix usable."""
    match policy.rule:
        case Rule.ALL_PAGES:
            return length
        case Rule.TRAILING:
            return min(policy.pages, length)
        case Rule.EXACT:
            return 1
