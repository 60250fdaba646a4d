"""What a prompt and its wishes come to: checked against the model, and turned into what a replica is asked."""

from __future__ import annotations  # array[int] is no type before Python 3.12

import secrets
import uuid
from array import array
from collections.abc import Sequence

from stratakv.api import errors
from stratakv.api.prompts import Prompt, Tenant
from stratakv.api.protocol import GenerationRequest
from stratakv.cluster.messages import Generate, ModelCard, Sampling, pack_tokens


def check_length(characters: int, limit: int, param: str) -> None:
    """Refuse a text that is too long to be tokenised at all."""
    if characters > limit:
        raise errors.invalid(
            param,
            f"`{param}` has {characters} characters and may have {limit} (`max_prompt_characters`); shorten it.",
            "string_above_max_length",
        )


def check_fits(text: str, longest_token: int | None, card: ModelCard, param: str) -> None:
    """Refuse a text that cannot fit the model however it is tokenised: finding that out by tokenising takes seconds."""
    if longest_token is None or len(text) <= card.max_total_tokens * longest_token:
        return
    raise errors.context_exceeded(
        param,
        f"`{param}` has {len(text)} characters, which are {len(text) // longest_token} tokens at the very least, and "
        f"prompt and answer together may have {card.max_total_tokens}; shorten it.",
    )


def check_ids(ids: Sequence[object], card: ModelCard, param: str) -> array[int]:
    """`ids` as token ids. Raises ApiError for the first that is none of the model's."""
    for index, token in enumerate(ids):
        if not isinstance(token, int) or isinstance(token, bool):
            message = f"`{param}[{index}]` is {token!r:.80}; a token id is a whole number."
            raise errors.invalid(f"{param}[{index}]", message)
        if not 0 <= token < card.vocab_size:
            message = (
                f"`{param}[{index}]` is {token!r:.80}; the model's token ids are 0 to {card.vocab_size - 1}."
            )
            raise errors.invalid(f"{param}[{index}]", message)
    return array("I", ids)  # type: ignore[arg-type]


def output_limit(prompt: int, wanted: int | None, default: int | None, card: ModelCard, param: str) -> int:
    """How many tokens may be put out after `prompt` tokens: what is `wanted`, else `default`, else all that fit.

    Raises ApiError if the prompt leaves no room, or less than is wanted.
    """
    room = card.max_total_tokens - prompt
    if room < 1:
        raise errors.context_exceeded(
            param,
            f"`{param}` has {prompt} tokens, and prompt and answer together may have {card.max_total_tokens}; "
            f"shorten it to {card.max_total_tokens - 1} tokens or fewer.",
        )
    if wanted is None:
        return room if default is None else min(room, default)
    if wanted > room:
        raise errors.context_exceeded(
            "max_tokens",
            f"{prompt} prompt tokens and {wanted} output tokens are more than the {card.max_total_tokens} that "
            f"prompt and answer may have together; set `max_tokens` to {room} or less, or shorten `{param}`.",
        )
    return wanted


def tenant(body: GenerationRequest) -> Tenant:
    """Whose texts the token map may use for this request."""
    return Tenant(body.cache_salt, body.extra_key)


def generate(body: GenerationRequest, prompt: Prompt, max_tokens: int, card: ModelCard) -> Generate:
    """The request to a replica. Without a seed one is drawn here, so that the request can be resumed elsewhere."""
    temperature, top_p, top_k = body.temperature, body.top_p, body.top_k
    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=0 if top_k is None or top_k == -1 else top_k,
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        stop_token_ids=tuple(check_ids(body.stop_token_ids or (), card, "stop_token_ids")),
        ignore_eos=bool(body.ignore_eos),
    )
    return Generate(
        id=uuid.uuid4().hex,
        tokens=pack_tokens(prompt.ids),
        sampling=sampling,
        extra_key=body.extra_key,
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
    )
