"""Attention spelled out in float64 from the definition, one query and one head at a time: what kernels are held to."""

import torch


def reference_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The last n tokens of a history over all of it.

    `query` [n, heads, key_dim]; `key`, `value` [tokens, kv_heads, dim] of the whole history. Returns float64
    [n, heads, value_dim].
    """
    queries, heads, _ = query.shape
    tokens, kv_heads, _ = key.shape
    out = torch.zeros(queries, heads, value.shape[2], dtype=torch.float64)
    for i in range(queries):
        position = tokens - queries + i
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(heads):
            group = head * kv_heads // heads
            seen = key[first : position + 1, group].double()
            scores = seen @ query[i, head].double() * scaling
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            weights = scores.exp()
            total = weights.sum() + (0.0 if sinks is None else sinks[head].double().exp())
            out[i, head] = (weights / total) @ value[first : position + 1, group].double()
    return out
