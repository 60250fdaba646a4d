"""Which shares of the KV heads a rank stores: a group is one object per page, whatever the number of ranks.

Replicas of different tensor-parallel sizes share pages when they cut the heads into the same groups: a rank then holds
several groups, or several ranks hold the same one and the first of them writes it.
"""

from typing import NamedTuple

from stratakv.kernels.shapes import Share
from stratakv.storage.layout import Group


class GroupError(ValueError):
    """The ranks and `store.head_groups` do not go together. Names both settings and what would."""


class GroupOfRank(NamedTuple):
    """A group that a rank holds: `share` of its own heads; `writes` if it is for this rank to store it."""

    group: Group
    share: Share
    writes: bool


def head_groups(setting: int | None, ranks: int, heads: int, latent: bool) -> int:
    """How many groups the `heads` KV heads of the model are stored in by `ranks` ranks. GroupError if it cannot be.

    Without a `setting` one per rank, but no more than there are heads. Latents are the same on every rank: one group.
    """
    if latent:
        return 1
    groups = min(ranks, heads) if setting is None else setting
    if heads % groups:
        fit = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise GroupError(
            f"store.head_groups: {heads} KV heads do not part into {groups} equal groups; set it to one of {fit}"
        )
    if groups % ranks and ranks % groups:
        raise GroupError(
            f"store.head_groups is {groups} and tensor_parallel is {ranks}: one must be a multiple of the other, "
            "so that a rank holds whole groups"
        )
    return groups


def groups_of_rank(groups: int, rank: int, ranks: int) -> tuple[GroupOfRank, ...]:
    """What `rank` of `ranks` holds of `groups` groups, in order. One of the two numbers is a multiple of the other."""
    if groups >= ranks:
        each = groups // ranks
        return tuple(GroupOfRank(Group(rank * each + i, groups), Share(i, each), True) for i in range(each))
    sharing = ranks // groups
    return (GroupOfRank(Group(rank // sharing, groups), Share(), rank % sharing == 0),)
