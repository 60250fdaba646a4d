"""From a tally to a metrics library that takes increments: what was added since the last time goes out, now and then.

The library is `ray.util.metrics`, behind `Sink` (`shell.py` has it): its figures appear on Ray's metrics port, beside
those of Ray itself.
"""

from typing import Protocol

from stratakv.cluster.tally import Family, Kind, Series, Tally


class Sink(Protocol):
    """Takes figures. A counter is never given an increment of 0, which `ray.util.metrics` refuses."""

    def add(self, family: Family, labels: dict[str, str], amount: float) -> None:
        """A counter grew by `amount`, which is above 0."""

    def set(self, family: Family, labels: dict[str, str], value: float) -> None:
        """A gauge stands at `value`."""


class Publisher:
    """Brings `sink` up to date with `tally` each time it is asked to."""

    def __init__(self, tally: Tally, sink: Sink):
        self._tally, self._sink = tally, sink
        self._told: dict[Series, float] = {}

    def publish(self) -> None:
        """Tell what is new. What the sink does not take is told again the next time."""
        for series, value in self._tally:
            if series.family.kind is Kind.GAUGE:
                self._sink.set(series.family, series.labels, value)
                continue
            new = value - self._told.get(series, 0.0)
            if new > 0:
                self._sink.add(series.family, series.labels, new)
                self._told[series] = value
