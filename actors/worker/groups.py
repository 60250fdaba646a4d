"""Which shares of the KV heads a rank stores: a group is one object per page, whatever the number of ranks.

Replicas of different tensor-parallel sizes share pages when they cut the heads into the same groups: a rank then holds
several groups, or several ranks hold the same one and the first of them writes it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from stratakv.actors.worker.split import HeadSplit
from stratakv.kernels.shapes import Share
from stratakv.storage.layout import Group


class GroupOfRank(NamedTuple):
    """A group that a rank holds: `share` of its own heads; `writes` if it is for this rank to store it."""

    group: Group
    share: Share
    writes: bool


@dataclass(frozen=True)
class StoredGroups:
    """The KV heads of the model are stored as `count` groups, of which this rank holds `held`, in order."""

    count: int
    held: tuple[GroupOfRank, ...]


def stored_groups(split: HeadSplit, rank: int, setting: int | None, latent: bool) -> StoredGroups:
    """What `rank` holds when the heads are dealt out by `split` and `store.head_groups` is `setting`.

    Compressed latents are the same on every rank: one group, which rank 0 writes. ValueError, naming the settings, if
    the stored groups cut across ranks.
    """
    if latent:
        return StoredGroups(1, (GroupOfRank(Group(), Share(), rank == 0),))
    mine = split.stored_groups(rank, setting)
    count = split.groups if setting is None else setting
    held = tuple(
        GroupOfRank(Group(index, count), Share(number, len(mine)), split.writes(rank))
        for number, index in enumerate(mine)
    )
    return StoredGroups(count, held)


SINGLE = StoredGroups(1, (GroupOfRank(Group(), Share(), True),))
"""The groups of a replica that has one rank and stores its heads as one object."""
