"""Counts by replica, as data: whoever sees something adds it here, and whoever exports metrics reads it.

A gateway keeps one. Its own `/metrics` shows it as it is (`metrics.py`), Ray's metrics port gets what was added since
the last time; nothing on the way of a request calls a metrics library for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """Whether a family only grows."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: what it is called without a prefix, what it says, and which labels it has, `replica` first."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ("replica",)


PROMPT_TOKENS = Family(
    "prompt_tokens",
    Kind.COUNTER,
    "Prompt tokens by where their KV came from: device, host, store or computed",
    ("replica", "tier"),
)
COMPUTED_TOKENS = Family(
    "computed_tokens_by_reason",
    Kind.COUNTER,
    "Computed prompt tokens by why no tier had them",
    ("replica", "reason"),
)
OUTPUT_TOKENS = Family("output_tokens", Kind.COUNTER, "Tokens of answers")
RECOMPUTED_TOKENS = Family("recomputed_tokens", Kind.COUNTER, "Tokens computed again after a retraction")
ROUTES = Family(
    "routes", Kind.COUNTER, "Requests sent to a replica, by why to this one", ("replica", "reason")
)
BROKEN = Family("broken_requests", Kind.COUNTER, "Answers that ended because the replica was lost")
RUNNING = Family("requests_running", Kind.GAUGE, "Requests in the batch")
WAITING = Family("requests_waiting", Kind.GAUGE, "Requests that wait for their turn")
MOVED_PAGES = Family(
    "moved_pages",
    Kind.COUNTER,
    "Pages that came to a tier: loaded, backed up, prefetched or written",
    ("replica", "move"),
)
UNMOVED_PAGES = Family(
    "unmoved_pages",
    Kind.COUNTER,
    "Pages whose way to or from the store came to nothing: prefetch lost, write failed or write dropped",
    ("replica", "move"),
)
LEFT_PAGES = Family("left_pages", Kind.COUNTER, "Pages that left a tier: device or host", ("replica", "tier"))
LOST_PAGES = Family(
    "lost_pages", Kind.COUNTER, "Pages that left the replica for good, by why", ("replica", "reason")
)
RETRACTIONS = Family("retractions", Kind.COUNTER, "Running requests that had to give up their place")
WRITE_BACKLOG = Family(
    "write_backlog_pages", Kind.GAUGE, "Pages that wait in host memory for their write to the store"
)

FAMILIES = (
    PROMPT_TOKENS,
    COMPUTED_TOKENS,
    OUTPUT_TOKENS,
    RECOMPUTED_TOKENS,
    ROUTES,
    BROKEN,
    RUNNING,
    WAITING,
    MOVED_PAGES,
    UNMOVED_PAGES,
    LEFT_PAGES,
    LOST_PAGES,
    RETRACTIONS,
    WRITE_BACKLOG,
)


class Series(NamedTuple):
    """One line of a family: its labels' values, in the family's order."""

    family: Family
    values: tuple[str, ...]

    @property
    def labels(self) -> dict[str, str]:
        """Label names and their values."""
        return dict(zip(self.family.labels, self.values, strict=True))


class Tally:
    """What has been counted so far. Not thread-safe: one event loop adds and reads."""

    def __init__(self) -> None:
        self._values: dict[Series, float] = {}

    def add(self, family: Family, amount: float, replica: int, *labels: str) -> None:
        """Count `amount` more in a counter. ValueError if it is negative or the family no counter."""
        if family.kind is not Kind.COUNTER or amount < 0:
            raise ValueError(f"{amount} cannot be added to {family.name}: a counter only grows")
        series = Series(family, (str(replica), *labels))
        self._values[series] = self._values.get(series, 0.0) + amount

    def set(self, family: Family, value: float, replica: int, *labels: str) -> None:
        """How a gauge stands now. ValueError if the family is no gauge."""
        if family.kind is not Kind.GAUGE:
            raise ValueError(f"{family.name} cannot be set: it is no gauge")
        self._values[Series(family, (str(replica), *labels))] = value

    def __iter__(self) -> Iterator[tuple[Series, float]]:
        """All lines and their values."""
        return iter(list(self._values.items()))
