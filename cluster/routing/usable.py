"""How deep a history is usable when components beside full attention have rules of their own. Asked by the directory.

The same as `storage.restore` says of whole bitmaps, but lazily: only pages that can still move the boundary are
looked up.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratakv.storage.restore import HitPolicy, Rule


class SideRule(NamedTuple):
    """A component's policy, and whether it is held of page number `index` (from 0) of the history."""

    policy: HitPolicy
    has: Callable[[int], bool]


def usable(held: int, rules: Sequence[SideRule]) -> int:
    """The longest prefix of at most `held` pages that all `rules` accept; 0 always is.

    Each page is looked up once a rule and boundary: a window costs its width, an exact state the way back to it.
    """
    length = held
    while length:
        accepted = min((_accepts(rule, length) for rule in rules), default=length)
        if accepted == length:
            return length
        length = accepted
    return 0


def _accepts(rule: SideRule, length: int) -> int:
    """`length` when the rule accepts it, else an upper bound of what it can accept."""
    match rule.policy.rule:
        case Rule.EXACT:
            return next((end for end in range(length, 0, -1) if rule.has(end - 1)), 0)
        case Rule.TRAILING:
            window = range(length - 1, max(0, length - rule.policy.pages) - 1, -1)
            # A page that is missing is in the window of every boundary from itself on: only before it may one lie.
            return next((index for index in window if not rule.has(index)), length)
        case Rule.ALL_PAGES:
            return next((index for index in range(length) if not rule.has(index)), length)
