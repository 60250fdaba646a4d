"""The benches' client: one streamed completion of token ids, with clock and account. The `openai` SDK underneath."""

import time
from dataclasses import dataclass
from typing import Any

import openai

from stratakv.deploy.demo_client import Account, ClientError, account_of

_DEADLINE = 600.0
"""Seconds until a request counts as failed: a long prompt on a small CPU takes minutes."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a gateway serves: name, tokens a request may have, ids that exist, tokens in a page."""

    name: str
    max_tokens: int
    vocabulary: int
    page_size: int


@dataclass(frozen=True, slots=True)
class Completion:
    """The ids that were answered, seconds to the first and to the last, and the account of the prompt.

    `reasons` splits its computed tokens by why no tier had them.
    """

    tokens: list[int]
    ttft: float
    seconds: float
    account: Account
    reasons: dict[str, int]


class BenchClient:
    """Asks the gateway at `url`. A request is tried once: a failure is a result of the bench, not to be hidden."""

    def __init__(self, url: str):
        self._openai = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", timeout=_DEADLINE, max_retries=0
        )

    async def served_model(self) -> ServedModel:
        """What is served there. ClientError if nothing is, or the server is not one of ours."""
        try:
            entries: list[Any] = (await self._openai.models.list()).data
            extra = entries[0].model_extra
            return ServedModel(entries[0].id, extra["max_model_len"], extra["vocab_size"], extra["page_size"])
        except openai.OpenAIError as error:
            raise ClientError(f"{self._openai.base_url}models: {type(error).__name__}: {error}") from error
        except (IndexError, KeyError, TypeError):
            raise ClientError(
                f"{self._openai.base_url}models does not say what a StrataKV gateway says; is it one, and ready?"
            ) from None

    async def complete(self, model: str, prompt: list[int], outputs: int, salt: str) -> Completion:
        """Exactly `outputs` greedy ids after the ids `prompt`. ClientError when they do not come."""
        began = time.perf_counter()
        first: float | None = None
        tokens: list[int] = []
        usage: Any = None
        try:
            create: Any = self._openai.completions.create  # its overloads do not know the extensions
            stream = await create(
                model=model,
                prompt=prompt,
                max_tokens=outputs,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True, "return_token_ids": True, "cache_salt": salt},
            )
            async for chunk in stream:
                for choice in chunk.choices:
                    tokens += choice.model_extra.get("token_ids") or ()
                if tokens and first is None:
                    first = time.perf_counter() - began
                usage = chunk.usage or usage
        except openai.OpenAIError as error:
            raise ClientError(f"{type(error).__name__}: {error}") from error
        seconds = time.perf_counter() - began
        if len(tokens) != outputs:
            raise ClientError(f"the answer has {len(tokens)} token ids where {outputs} were asked for")
        account = account_of(usage)
        reasons = dict(usage.prompt_tokens_details.model_extra["computed_by_reason"])
        return Completion(tokens, seconds if first is None else first, seconds, account, reasons)

    async def close(self) -> None:
        """Close the connections; requests under way fail."""
        await self._openai.close()
