"""From the counts that heads send with their beats to a tally: what each replica did since it was last heard."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from stratakv.cluster import tally
from stratakv.cluster.messages import HierarchyCounts
from stratakv.cluster.tally import Family, Tally


class _Line(NamedTuple):
    family: Family
    label: tuple[str, ...]
    value: int


class _Heard:
    """What a generation of a replica has told so far."""

    def __init__(self, generation: int):
        self.generation = generation
        self.values: dict[tuple[Family, tuple[str, ...]], int] = {}


class CountFollower:
    """Adds the growth of each replica's counts to `counts`. A new generation begins at zero, and what its predecessor
    did stays counted. Not thread-safe."""

    def __init__(self, counts: Tally):
        self._tally = counts
        self._heard: dict[int, _Heard] = {}

    def heard(self, replica: int, generation: int, counts: HierarchyCounts) -> None:
        """`counts` are those of `replica` now. An older generation than the last one heard is ignored, and so is a
        count that is smaller than it was."""
        heard = self._heard.get(replica)
        if heard is None or generation > heard.generation:
            heard = self._heard[replica] = _Heard(generation)
        elif generation < heard.generation:
            return
        for family, label, value in _lines(counts):
            before = heard.values.get((family, label), 0)
            heard.values[family, label] = max(before, value)
            self._tally.add(family, max(0, value - before), replica, *label)
        self._tally.set(tally.WRITE_BACKLOG, counts.write_backlog, replica)

    def away(self, replica: int) -> None:
        """The replica is not there: it has no backlog. What it did stays counted."""
        self._tally.set(tally.WRITE_BACKLOG, 0, replica)


def _lines(counts: HierarchyCounts) -> Iterator[_Line]:
    """Every counter of `counts` with the labels it is exported under."""
    by_label: Mapping[Family, Mapping[str, int]] = {
        tally.MOVED_PAGES: {
            "loaded": counts.loaded,
            "backed up": counts.backed_up,
            "prefetched": counts.prefetched,
            "written": counts.written,
        },
        tally.UNMOVED_PAGES: {
            "prefetch lost": counts.prefetch_lost,
            "write failed": counts.write_failed,
            "write dropped": counts.write_dropped,
        },
        tally.LEFT_PAGES: {"device": counts.left_device, "host": counts.left_host},
        tally.LOST_PAGES: counts.lost,
    }
    for family, values in by_label.items():
        for label, value in values.items():
            yield _Line(family, (label,), value)
    yield _Line(tally.RETRACTIONS, (), counts.retractions)
