"""Paged attention as transformers calls it: store the new KV in the pool, attend over each request's pages.

Registered with transformers as `stratakv_paged`, so any causal LM that takes its attention from there runs unmodified.
A name that transformers has no mask function for makes it build no mask; all masking is here. This is the torch
reference, for CPU and GPU.
"""

from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from stratakv.kernels.context import current_forward
from stratakv.kernels.layer_memory import KeysAndValues, layer_memory

PAGED_ATTENTION = "stratakv_paged"
"""The attention implementation to ask transformers for."""


class Causal(Enum):
    """The mask of tokens that see themselves and those before them, which kernels know without a tensor."""

    CAUSAL = "causal"


CAUSAL = Causal.CAUSAL
Mask = torch.Tensor | Causal | None


def register() -> None:
    """Make `PAGED_ATTENTION` known to transformers. Harmless when repeated."""
    AttentionInterface.register(PAGED_ATTENTION, paged_attention)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of the layer whose KV has just arrived, over the current forward's flat batch of T tokens.

    `query` [1, heads, T, key_dim], `key` [1, kv_heads, T, key_dim], `value` [1, kv_heads, T, value_dim], positions
    applied; `s_aux` [heads] are attention sinks. Returns [1, T, heads, value_dim]. Writes the T new keys and values to
    the layer's pool. ValueError when a model brings a mask of its own, which would be ignored.
    """
    if attention_mask is not None:
        raise ValueError("paged attention masks by itself; this model builds an attention mask of its own")
    memory = layer_memory(current_forward(), module)
    memory.store(key, value)
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    work = memory.batch.work(sliding_window)
    parts = []
    if work.decode:
        queries = query[0].transpose(0, 1).unsqueeze(2)
    for group in work.decode:
        count = group.tokens.stop - group.tokens.start
        seen = memory.read(group.keys, count)
        out = attend(
            queries[group.tokens], seen.key, seen.value, scaling, group.mask, softcap=softcap, sinks=s_aux
        )  # fmt: skip
        parts.append(out.squeeze(2))
    for span in work.prefill:
        if span.keys is None:
            seen = KeysAndValues(key[:, :, span.tokens], value[:, :, span.tokens])
        else:
            seen = memory.read(span.keys)
        for block in span.blocks:
            out = attend(
                query[:, :, block.tokens], seen.key[:, :, block.keys], seen.value[:, :, block.keys], scaling,
                CAUSAL if block.mask is None else block.mask, softcap=softcap, sinks=s_aux,
            )  # fmt: skip
            parts.append(out[0].transpose(0, 1))
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    mask: Mask,
    *,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Softmax attention of `query` [B, heads, Q, key_dim] over `key` and `value` [B, kv_heads, K, dim].

    `mask`, bool, broadcasts to [B, 1, Q, K] and is True where a query may look; None lets all see all.
    Heads h * g .. h * g + g - 1 read KV head h. Returns [B, heads, Q, value_dim].
    """
    batch, heads, queries, _ = query.shape
    if softcap is not None or sinks is not None:
        return _attend_by_hand(query, key, value, scaling, mask, softcap, sinks)
    causal = mask is CAUSAL
    tensor = None if isinstance(mask, Causal) else mask
    if queries > 1:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=tensor,
            is_causal=causal,
            scale=scaling,
            enable_gqa=heads != key.shape[1],
        )
    # One query sees the same keys from each head of a group, so the group's heads can stand as queries of one KV head.
    folded = query.reshape(batch, key.shape[1], -1, query.shape[-1])
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=tensor, scale=scaling)
    return out.reshape(batch, heads, 1, -1)


def _attend_by_hand(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    mask: Mask,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """`attend` with what the fused kernels do not know. Scores are in float32 or better."""
    batch, heads, queries, _ = query.shape
    exact = torch.promote_types(query.dtype, torch.float32)
    grouped = query.reshape(batch, key.shape[1], -1, query.shape[-1])
    scores = torch.matmul(grouped.to(exact), key.to(exact).transpose(2, 3)) * scaling
    scores = scores.view(batch, heads, queries, -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if isinstance(mask, Causal):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        column = sinks.to(exact).view(1, heads, 1, 1).expand(batch, heads, queries, 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[2]].to(value.dtype)
    out = torch.matmul(weights.reshape(batch, key.shape[1], -1, key.shape[2]), value)
    return out.view(batch, heads, queries, -1)
