"""The account of a request as its client sees it: every prompt token by where its KV came from."""

from typing import Any

from stratakv.cluster.messages import Usage


def usage_json(usage: Usage, output: int) -> dict[str, Any]:
    """OpenAI's `usage` for `output` tokens, with the account of the prompt by tier.

    `cached_tokens` is their sum; with `computed_tokens` it is `prompt_tokens`. `computed_by_reason` splits what was
    computed, `recomputed_tokens` is work that was done again and is in no other number.
    """
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": output,
        "total_tokens": usage.prompt + output,
        "prompt_tokens_details": {
            "cached_tokens": usage.device + usage.host + usage.store,
            "cached_tokens_by_tier": {"device": usage.device, "host": usage.host, "store": usage.store},
            "computed_tokens": usage.computed,
            "recomputed_tokens": usage.recomputed,
            "computed_by_reason": usage.misses,
        },
    }


def usage_sentence(usage: Usage) -> str:
    """`812 prompt tokens (640 device, 128 host, 44 computed)`."""
    shares = [
        (usage.device, "device"),
        (usage.host, "host"),
        (usage.store, "store"),
        (usage.computed, "computed"),
    ]
    said = ", ".join(f"{count} {name}" for count, name in shares if count)
    return f"{usage.prompt} prompt tokens ({said})"
