"""Hit rate against cache size: how much memory a trace is worth, under each eviction policy and at best."""

from collections.abc import Sequence
from dataclasses import dataclass

from stratakv.cluster.replay.optimum import best_hit_tokens
from stratakv.cluster.replay.request import ReplayRequest
from stratakv.cluster.replay.run import Advance, run_alone
from stratakv.cluster.replay.settings import ReplicaSettings
from stratakv.storage.policies.eviction import EVICTION_POLICIES

OPTIMUM = "offline optimum"


@dataclass(frozen=True, slots=True)
class Sweep:
    """`hit_rates[name][i]` is the token hit rate in one memory of `tokens[i]` tokens under policy `name`, and
    `ceiling` that in a memory without end."""

    tokens: list[int]
    hit_rates: dict[str, list[float]]
    ceiling: float


def sweep_steps(requests: Sequence[ReplayRequest]) -> int:
    """How often `sweep` calls `advance`."""
    return len(sizes(requests)) * len(EVICTION_POLICIES.names()) * len(requests)


def sizes(requests: Sequence[ReplayRequest]) -> list[int]:
    """Powers of two in pages, from the first that holds every single prompt to the first that holds all pages."""
    longest = max(len(request.keys) for request in requests)
    distinct = len({key for request in requests for key in request.keys})
    size, found = 1, list[int]()
    while not found or found[-1] < distinct:
        if size >= longest:
            found.append(size)
        size *= 2
    return found


def sweep(requests: Sequence[ReplayRequest], page_size: int, advance: Advance) -> Sweep:
    """One replica with a device tier alone, at each size and under every registered policy. Tiers are inclusive, so a
    size reads as that of the largest tier."""
    pages = sizes(requests)
    prompt = sum(request.prompt_tokens for request in requests)
    rates = {OPTIMUM: [best_hit_tokens(requests, size, page_size) / prompt for size in pages]}
    for name in EVICTION_POLICIES.names():
        rates[name] = [run_alone(requests, _alone(page_size, size, name), advance).hit_rate for size in pages]
    ceiling = sum(request.seen_tokens for request in requests) / prompt
    return Sweep([size * page_size for size in pages], rates, ceiling)


def _alone(page_size: int, pages: int, policy: str) -> ReplicaSettings:
    return ReplicaSettings(page_size=page_size, device_tokens=pages * page_size, eviction_policy=policy)
