"""POST /v1/completions: a text or token ids, and how they go on."""

from __future__ import annotations  # array[int] is no type before Python 3.12

import time
from array import array
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request, Response

from stratakv.api import body as bodies
from stratakv.api import errors, limits
from stratakv.api.answer import answer
from stratakv.api.generation import Generation, Piece
from stratakv.api.observe import observation
from stratakv.api.prompts import Prompt
from stratakv.api.protocol import CompletionRequest
from stratakv.api.service import Service
from stratakv.cluster.messages import ModelCard

_DEFAULT_MAX_TOKENS = 16  # OpenAI's


def router(service: Service) -> APIRouter:
    """The route, served by `service`."""
    routes = APIRouter()

    @routes.post("/v1/completions")
    async def complete(request: Request) -> Response:
        seen = observation(request.scope)
        seen.until_answered.enter_context(service.place())
        body = await bodies.read(request, CompletionRequest, service.settings)
        card = service.card(body.model)
        source = parse_prompt(body.prompt, card, service.settings.max_prompt_characters)
        text = await service.text(card)
        if isinstance(source, str):
            limits.check_fits(source, text.longest_token, card, "prompt")
            prompt = await service.prompts.completion(text, source, limits.tenant(body))
        else:
            prompt = Prompt(source)
        if not prompt.ids:
            raise errors.invalid("prompt", "`prompt` comes to no token at all; send at least one.")
        most = limits.output_limit(len(prompt.ids), body.output_limit(), _DEFAULT_MAX_TOKENS, card, "prompt")
        command = limits.generate(body, prompt, most, card)
        if prompt.outcome is not None:
            service.metrics.token_map(prompt.outcome)
        generation = Generation(service, seen, "completion", command, prompt, card, text, body.stop or ())
        form = CompletionFormat(f"cmpl-{command.id}", card, prompt, bool(body.return_token_ids))
        return await answer(request, body, generation, form)

    return routes


def parse_prompt(prompt: object, card: ModelCard, max_characters: int) -> str | array[int]:
    """The one prompt that `prompt` holds: a text, token ids, or a list of one of either. Raises ApiError."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            message = f"`prompt` holds {len(prompt)} prompts and may hold one; send one request for each."
            raise errors.invalid("prompt", message, "unsupported_value")
        prompt = prompt[0]
    if isinstance(prompt, str):
        if not prompt:
            raise errors.invalid("prompt", "`prompt` is empty; send at least one character.")
        limits.check_length(len(prompt), max_characters, "prompt")
        return prompt
    if not isinstance(prompt, list):
        raise errors.invalid("prompt", "`prompt` must be a string or a list of token ids.")
    if not prompt:
        raise errors.invalid("prompt", "`prompt` is an empty list; send at least one token id.")
    return limits.check_ids(prompt, card, "prompt")


class CompletionFormat:
    """OpenAI's `text_completion`; ids are vLLM's extension `return_token_ids`."""

    def __init__(self, id: str, card: ModelCard, prompt: Prompt, with_ids: bool):
        self._head = {"id": id, "object": "text_completion", "created": int(time.time()), "model": card.name}
        self._with_ids = with_ids
        self._prompt_ids: list[int] | None = list(prompt.ids) if with_ids else None

    def whole(self, text: str, generation: Generation) -> dict[str, Any]:
        """The answer in one part, without usage."""
        return self._choice(text, generation.finish, generation.tokens)

    def opening(self) -> Iterable[dict[str, Any]]:
        """Chunks before the first piece: none."""
        return ()

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """The chunk of a piece of text."""
        return self._choice(piece.text, None, piece.tokens)

    def closing(self, generation: Generation) -> dict[str, Any]:
        """The chunk that says why the answer ended."""
        return self._choice("", generation.finish, ())

    def account(self) -> dict[str, Any]:
        """A chunk without a choice, for the usage."""
        return self._head | {"choices": []}

    def _choice(self, text: str, finish: str | None, tokens: Iterable[int]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        if self._with_ids:
            choice["token_ids"] = list(tokens)
            choice["prompt_token_ids"] = self._prompt_ids
            self._prompt_ids = None  # in a stream they come once, with the first chunk
        return self._head | {"choices": [choice]}
