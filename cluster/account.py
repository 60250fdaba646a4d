"""The account of a finished request, added to a tally: every prompt token under its tier, every computed one under its
reason."""

from stratakv.cluster import tally
from stratakv.cluster.messages import Usage
from stratakv.cluster.tally import Tally


def count_request(counts: Tally, replica: int, usage: Usage | None, output: int) -> None:
    """Add a request of `replica` that was answered with `output` tokens; `usage` is None if it never began.

    An account that does not add up counts nowhere but in `Metrics.usage`, which says so: that the sums add up, always,
    is what they are for.
    """
    counts.add(tally.OUTPUT_TOKENS, output, replica)
    if usage is None or not usage.adds_up:
        return
    counts.add(tally.PROMPT_TOKENS, usage.device, replica, "device")
    counts.add(tally.PROMPT_TOKENS, usage.host, replica, "host")
    counts.add(tally.PROMPT_TOKENS, usage.store, replica, "store")
    counts.add(tally.PROMPT_TOKENS, usage.computed, replica, "computed")
    counts.add(tally.RECOMPUTED_TOKENS, usage.recomputed, replica)
    for reason, tokens in usage.misses.items():
        counts.add(tally.COMPUTED_TOKENS, tokens, replica, reason)
