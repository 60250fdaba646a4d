"""The demo's client: the `openai` SDK, as anybody would use it, and a clock."""

import time
from dataclasses import dataclass
from typing import Any

import openai

from stratakv.deploy.demo_text import Messages, opening

_DEADLINE = 120.0
_RETRIES = 5
"""A request may meet a worker in the moment it dies; it then gets a 503 that says when to come back."""
_MEASURE = 20


class ClientError(Exception):
    """A request was not answered as it should be."""


@dataclass(frozen=True, slots=True)
class Account:
    """Tokens of one prompt, by where their KV came from."""

    prompt: int
    device: int
    host: int
    store: int
    computed: int

    def of(self, tier: str) -> int:
        """Tokens that came from `tier`: device, host or store."""
        return {"device": self.device, "host": self.host, "store": self.store}[tier]


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered, after how many seconds the first of it came, and the account of the prompt."""

    text: str
    ttft: float
    account: Account


def account_of(usage: Any) -> Account:
    """The account in the SDK's `usage`. ClientError when there is none, or its sum is not the prompt."""
    try:
        details = usage.prompt_tokens_details.model_extra
        tiers = details["cached_tokens_by_tier"]
        account = Account(
            usage.prompt_tokens, tiers["device"], tiers["host"], tiers["store"], details["computed_tokens"]
        )
    except (AttributeError, KeyError, TypeError):
        raise ClientError("an answer came without the account of its prompt tokens") from None
    if account.device + account.host + account.store + account.computed != account.prompt:
        raise ClientError(f"the account of a prompt does not add up: {account}")
    return account


class Client:
    """Asks the gateway at `url`. May be used by several threads."""

    def __init__(self, url: str, model: str, max_tokens: int):
        self._openai = openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", timeout=_DEADLINE, max_retries=_RETRIES
        )
        self._url = url
        self._model = model
        self._max_tokens = max_tokens

    def chat(self, messages: Messages, salt: str | None = None) -> Answer:
        """The greedy answer to `messages`; under a `salt` that was never used nothing can come from a cache.

        ClientError when there is none.
        """
        began = time.monotonic()
        first: float | None = None
        text, usage = "", None
        try:
            create: Any = self._openai.chat.completions.create  # its overloads know typed dicts alone
            stream = create(
                model=self._model,
                messages=messages,
                max_tokens=self._max_tokens,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"cache_salt": salt} if salt else None,
            )
            for chunk in stream:
                content = chunk.choices[0].delta.content if chunk.choices else None
                if content and first is None:
                    first = time.monotonic() - began
                text += content or ""
                usage = chunk.usage or usage
        except openai.OpenAIError as error:
            raise ClientError(f"a request failed: {type(error).__name__}: {error}") from error
        return Answer(text, first if first is not None else time.monotonic() - began, account_of(usage))

    def lines_for(self, ship: str, question: str, tokens: int) -> int:
        """How many lines the log of `ship` needs for a first prompt of at least `tokens` tokens."""
        few, many = (self._count(opening(ship, lines, question)) for lines in (0, _MEASURE))
        lines = max(0, (tokens - few) * _MEASURE // max(1, many - few))
        while self._count(opening(ship, lines, question)) < tokens:
            lines += 1
        return lines

    def close(self) -> None:
        """Close the connections; requests under way fail."""
        self._openai.close()

    def _count(self, messages: Messages) -> int:
        try:
            answer: Any = self._openai.post(
                f"{self._url}/tokenize", body={"messages": messages}, cast_to=object
            )
        except openai.OpenAIError as error:
            raise ClientError(f"/tokenize failed: {type(error).__name__}: {error}") from error
        return int(answer["count"])
