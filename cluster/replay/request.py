"""What a workload is made of: requests as the replay sees them, by the keys of their pages."""

from collections.abc import Sequence
from dataclasses import dataclass

from stratakv.storage.tiers import PageKey


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A prompt of `prompt_tokens` tokens that gets `output_tokens` in answer.

    `keys` are the full pages that it leaves in the cache, of prompt and answer; the last token of an answer has no KV.
    `seen_tokens` of the prompt were seen before, so no cache can serve more: the ceiling. `round` is the part of the
    workload that it is counted in, `seconds` when it arrives. `name` is what errors call it.
    """

    round: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    keys: Sequence[PageKey]
    seen_tokens: int
    name: str
