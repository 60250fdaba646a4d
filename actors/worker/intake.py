"""The first look a head takes at a request: is it well-formed, and what are its page keys?

A gateway is not trusted with identity: the keys are chained here, from the tokens, in the receive thread, so
that the engine's thread spends no time on it.
"""

import math

import numpy as np

from stratakv.cluster.messages import HIGHEST_PRIORITY, LOWEST_PRIORITY, Failure, Generate, ModelCard
from stratakv.storage.keys import chain, namespace_seed
from stratakv.storage.tiers import PageKey


class Refused(Exception):
    """The request cannot be served as it is; `failure` says why and what to do."""

    def __init__(self, code: str, message: str, param: str):
        super().__init__(message)
        self.failure = Failure(code, message, param)


def page_keys(request: Generate, card: ModelCard) -> list[PageKey]:
    """The chained keys of all full pages of the prompt. Raises Refused for what this model cannot run."""
    if len(request.tokens) % 4:
        raise Refused(
            "invalid_value", f"tokens are {len(request.tokens)} bytes, not whole u32 values", "prompt"
        )
    tokens = np.frombuffer(request.tokens, dtype="<u4")
    _check_tokens(tokens, card)
    _check_wishes(request, len(tokens), card)
    seed = namespace_seed(request.extra_key, request.cache_salt)
    return chain(tokens, card.page_size, after=seed)


def _check_tokens(tokens: np.ndarray, card: ModelCard) -> None:
    if not len(tokens):
        raise Refused("invalid_value", "the prompt has no token; send at least one", "prompt")
    if len(tokens) >= card.max_total_tokens:
        raise Refused(
            "context_length_exceeded",
            f"the prompt has {len(tokens)} tokens; with its output it may have {card.max_total_tokens}",
            "prompt",
        )
    highest = int(tokens.max())
    if highest >= card.vocab_size:
        message = f"token id {highest} is not in the vocabulary; ids are 0 to {card.vocab_size - 1}"
        raise Refused("invalid_value", message, "prompt")


def _check_wishes(request: Generate, prompt: int, card: ModelCard) -> None:
    sampling = request.sampling
    if sampling.max_tokens < 1:
        raise Refused("invalid_value", f"max_tokens is {sampling.max_tokens}; it is at least 1", "max_tokens")
    if prompt + sampling.max_tokens > card.max_total_tokens:
        raise Refused(
            "context_length_exceeded",
            f"{prompt} prompt tokens and max_tokens {sampling.max_tokens} exceed the {card.max_total_tokens} "
            f"tokens a request may have; ask for {card.max_total_tokens - prompt} or fewer",
            "max_tokens",
        )
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        message = f"temperature is {sampling.temperature}; it is a number of 0 or more"
        raise Refused("invalid_value", message, "temperature")
    if not 0 < sampling.top_p <= 1:
        raise Refused("invalid_value", f"top_p is {sampling.top_p}; it is above 0 and at most 1", "top_p")
    if not LOWEST_PRIORITY <= request.priority <= HIGHEST_PRIORITY:
        message = f"priority is {request.priority}; it is {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}"
        raise Refused("invalid_value", message, "priority")
    if sampling.top_k < 0:
        raise Refused("invalid_value", f"top_k is {sampling.top_k}; it is 0 (no limit) or more", "top_k")
