"""What a replay found: tokens by where they came from, and hit rates against the ceiling."""

from collections import Counter

import msgspec

from stratakv.cluster.messages import Usage
from stratakv.cluster.replay.request import ReplayRequest
from stratakv.storage.tiers import Tier


class ReplicaShare(msgspec.Struct, frozen=True):
    """What one replica had to do with: requests, prompt tokens, and those of them that it computed."""

    requests: int
    prompt_tokens: int
    computed_tokens: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The account of a replay. `prompt_tokens` = `computed_tokens` + the sum of `tokens_by_tier`.

    Rates are of prompt tokens. The ceiling is what a cache would serve that forgets nothing; `seconds` is what the
    replay took. `misses` splits the computed tokens by reason; `replicas` adds up to the whole.
    """

    prompt_tokens: int
    computed_tokens: int
    tokens_by_tier: dict[str, int]
    hit_rate: float
    ceiling: float
    hit_rate_by_round: list[float]
    ceiling_by_round: list[float]
    seconds: float
    misses: dict[str, int]
    replicas: list[ReplicaShare]


class Tally:
    """Adds up the accounts of requests."""

    def __init__(self, replicas: int):
        self._prompt: Counter[int] = Counter()
        self._served: Counter[int] = Counter()
        self._seen: Counter[int] = Counter()
        self._tiers: Counter[Tier] = Counter(dict.fromkeys(Tier, 0))
        self._misses: Counter[str] = Counter()
        self._shares = [Counter[str]() for _ in range(replicas)]

    def add(self, request: ReplayRequest, usage: Usage, replica: int) -> None:
        """`replica` served `request`."""
        self._prompt[request.round] += usage.prompt
        self._served[request.round] += usage.prompt - usage.computed
        self._seen[request.round] += request.seen_tokens
        for tier, tokens in ((Tier.DEVICE, usage.device), (Tier.HOST, usage.host), (Tier.STORE, usage.store)):
            self._tiers[tier] += tokens
        self._misses.update(usage.misses)
        self._shares[replica].update(requests=1, prompt_tokens=usage.prompt, computed_tokens=usage.computed)

    def report(self, seconds: float) -> Report:
        """The sums so far. A round without requests has the rate 0."""
        prompt, served = self._prompt.total(), self._served.total()
        rounds = range(max(self._prompt, default=-1) + 1)
        return Report(
            prompt_tokens=prompt,
            computed_tokens=prompt - served,
            tokens_by_tier={str(tier): tokens for tier, tokens in self._tiers.items()},
            hit_rate=_rate(served, prompt),
            ceiling=_rate(self._seen.total(), prompt),
            hit_rate_by_round=[_rate(self._served[number], self._prompt[number]) for number in rounds],
            ceiling_by_round=[_rate(self._seen[number], self._prompt[number]) for number in rounds],
            seconds=seconds,
            misses=dict(self._misses),
            replicas=[
                ReplicaShare(share["requests"], share["prompt_tokens"], share["computed_tokens"])
                for share in self._shares
            ],
        )


def _rate(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
