"""A pairwise covering array: few cells in which every two values of different factors meet at least once."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product

Cell = dict[str, object]


def pairwise(factors: Mapping[str, Sequence[object]], allowed: Callable[[Cell], bool]) -> list[Cell]:
    """Cells over `factors` that cover every pair of values which some allowed cell has. Greedy, and always the same:
    each new cell is the allowed one that covers most of what is left, the first of equals."""
    cells = [dict(zip(factors, values, strict=True)) for values in product(*factors.values())]
    cells = [cell for cell in cells if allowed(cell)]
    pairs_of = [frozenset(combinations(sorted(cell.items(), key=lambda item: item[0]), 2)) for cell in cells]
    left = set().union(*pairs_of)
    chosen: list[Cell] = []
    while left:
        best = max(range(len(cells)), key=lambda index: len(pairs_of[index] & left))
        chosen.append(cells[best])
        left -= pairs_of[best]
    return chosen


def missing(
    cells: Sequence[Cell], factors: Mapping[str, Sequence[object]], allowed: Callable[[Cell], bool]
) -> int:
    """How many pairs that an allowed cell could have are in none of `cells`."""
    every = [dict(zip(factors, values, strict=True)) for values in product(*factors.values())]
    wanted, had = set(), set()
    for found, among in ((wanted, [cell for cell in every if allowed(cell)]), (had, cells)):
        for cell in among:
            found.update(combinations(sorted(cell.items(), key=lambda item: item[0]), 2))
    return len(wanted - had)
