"""The names a restarted supervisor finds, read as generations: what lives, what is only remembered."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """The newest generation of a replica that has left a trace, and whether all its ranks live.

    `older` are the generations before it that still have living ranks.
    """

    replica: int
    generation: int
    complete: bool
    older: tuple[int, ...]


def survey(
    living: Iterable[tuple[int, int]], remembered: Iterable[tuple[int, int]], ranks: int
) -> list[Found]:
    """What was found per replica. `living` has a (replica, generation) per living rank, `remembered` one per group."""
    alive = Counter(living)
    traces: dict[int, set[int]] = {}
    for replica, generation in [*alive, *remembered]:
        traces.setdefault(replica, set()).add(generation)
    found = []
    for replica, generations in sorted(traces.items()):
        newest = max(generations)
        older = tuple(
            sorted(generation for generation in generations - {newest} if alive[replica, generation])
        )
        found.append(Found(replica, newest, alive[replica, newest] == ranks, older))
    return found
