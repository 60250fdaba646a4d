"""How counts become metrics: every figure of an operator's dashboard, in a registry of its own.

Lower floors return counts as data; whoever serves `/metrics` feeds them in here, when a request is over.
"""

import logging
from collections.abc import Iterator
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from stratakv.cluster.messages import Usage
from stratakv.cluster.tally import FAMILIES, Family, Kind, Tally

_log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of what `Metrics.render` returns."""

_TTFT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0)
_INTER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class MapOutcome(StrEnum):
    """How far a prompt's text was known to the token map."""

    END = "end"
    """To the end of an earlier answer: the conversation goes on, token for token."""
    SPECIAL = "special"
    """To a special token; the rest was encoded anew."""
    MISS = "miss"
    """Not at all."""


class Metrics:
    """The metrics of one process. Not thread-safe beyond what prometheus_client gives: feed it from one loop.

    What `tally` holds is shown too, as `stratakv_replica_...`.
    """

    def __init__(self, tally: Tally | None = None) -> None:
        self._registry = registry = CollectorRegistry()
        if tally is not None:
            registry.register(_Tallied(tally))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"stratakv_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"stratakv_{name}", text, registry=registry)

        self._requests = counter("requests", "HTTP requests by route and status", "route", "status")
        self._prompt = counter("prompt_tokens", "Prompt tokens of all requests")
        self._by_tier = counter("prompt_tokens_by_tier", "Prompt tokens by where their KV came from", "tier")
        self._misses = counter("computed_tokens_by_reason", "Computed prompt tokens by reason", "reason")
        self._recomputed = counter(
            "recomputed_tokens", "Tokens computed again after a retraction or a resume"
        )
        self._unbalanced = counter(
            "unbalanced_requests", "Requests whose account did not add up; must stay 0"
        )
        self._output = counter("output_tokens", "Output tokens of all requests")
        self._token_map = counter("token_map_lookups", "Lookups in the token map by outcome", "outcome")
        self._first_token = Histogram(
            "stratakv_time_to_first_token_seconds",
            "From arrival to first token",
            buckets=_TTFT,
            registry=registry,
        )
        self._inter_token = Histogram(
            "stratakv_inter_token_seconds", "Between two tokens", buckets=_INTER_TOKEN, registry=registry
        )
        self._running = gauge("requests_running", "Requests in the batches of all replicas")
        self._waiting = gauge("requests_waiting", "Requests that wait for their turn at all replicas")
        self._ready = gauge("replicas_ready", "Replicas that serve")
        self._total = gauge("replicas", "Replicas that should serve")
        self._map_bytes = gauge("token_map_bytes", "Memory of the token map")
        for tier in ("device", "host", "store", "computed"):
            self._by_tier.labels(tier)
        for outcome in MapOutcome:
            self._token_map.labels(outcome.value)

    def request(self, route: str, status: int) -> None:
        """An HTTP request to the route template `route` was answered."""
        self._requests.labels(route, str(status)).inc()

    def usage(self, usage: Usage, output: int) -> None:
        """A request is over: `usage` is the account of its prompt, `output` the tokens it was answered with.

        An account that does not add up is logged and counted in `unbalanced_requests`, and nowhere else.
        """
        self._output.inc(output)
        if not usage.adds_up:
            _log.error("the account of a prompt does not add up: %s", usage)
            self._unbalanced.inc()
            return
        self._prompt.inc(usage.prompt)
        self._by_tier.labels("device").inc(usage.device)
        self._by_tier.labels("host").inc(usage.host)
        self._by_tier.labels("store").inc(usage.store)
        self._by_tier.labels("computed").inc(usage.computed)
        self._recomputed.inc(usage.recomputed)
        for reason, tokens in usage.misses.items():
            self._misses.labels(reason).inc(tokens)

    def first_token(self, seconds: float) -> None:
        """The first token of an answer came `seconds` after its request."""
        self._first_token.observe(seconds)

    def next_tokens(self, count: int, seconds: float) -> None:
        """`count` (1 or more) further tokens came `seconds` after the token before them."""
        for _ in range(count):
            self._inter_token.observe(seconds / count)

    def token_map(self, outcome: MapOutcome) -> None:
        """A prompt's text was looked up in the token map."""
        self._token_map.labels(outcome.value).inc()

    def load(self, *, running: int, waiting: int, ready: int, total: int, map_bytes: int) -> None:
        """How things stand now: requests, replicas, and the memory of the token map."""
        self._running.set(running)
        self._waiting.set(waiting)
        self._ready.set(ready)
        self._total.set(total)
        self._map_bytes.set(map_bytes)

    def render(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _Tallied(Collector):
    """Shows a tally as it is when it is asked."""

    def __init__(self, tally: Tally):
        self._tally = tally

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """All families of the tally, also those that have no line yet."""
        shown = {family: _shown(family) for family in FAMILIES}
        for series, value in self._tally:
            shown[series.family].add_metric(list(series.values), value)
        yield from shown.values()


def _shown(family: Family) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
    return kind(f"stratakv_replica_{family.name}", family.text, labels=family.labels)
