"""POST /v1/chat/completions: a conversation, and its next answer."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from stratakv.api import body as bodies
from stratakv.api import errors, limits
from stratakv.api.answer import answer
from stratakv.api.generation import Generation, Piece
from stratakv.api.observe import observation
from stratakv.api.prompts import Prompt
from stratakv.api.protocol import ChatRequest, Message
from stratakv.api.service import Service
from stratakv.api.text import TemplateFailure, Text
from stratakv.cluster.messages import ModelCard


def router(service: Service) -> APIRouter:
    """The route, served by `service`."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        seen = observation(request.scope)
        seen.until_answered.enter_context(service.place())
        body = await bodies.read(request, ChatRequest, service.settings)
        card = service.card(body.model)
        check_messages(body.messages, service.settings.max_prompt_characters)
        text = await service.text(card)
        rendered = await render(text, body.messages)
        limits.check_fits(rendered, text.longest_token, card, "messages")
        prompt = await service.prompts.chat(text, rendered, limits.tenant(body))
        most = limits.output_limit(len(prompt.ids), body.output_limit(), None, card, "messages")
        command = limits.generate(body, prompt, most, card)
        if prompt.outcome is not None:
            service.metrics.token_map(prompt.outcome)
        generation = Generation(service, seen, "chat", command, prompt, card, text, body.stop or ())
        form = ChatFormat(f"chatcmpl-{command.id}", card, prompt, bool(body.return_token_ids))
        return await answer(request, body, generation, form)

    return routes


def check_messages(messages: Sequence[Message], max_characters: int) -> None:
    """Refuse a conversation that is too long to be tokenised at all."""
    limits.check_length(sum(len(message.content or "") for message in messages), max_characters, "messages")


async def render(text: Text, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
    """The text of the conversation, by the model's template. Raises ApiError with the template's own message."""
    plain = [message.for_template() for message in messages]
    try:
        rendered = await asyncio.to_thread(text.render, plain, add_generation_prompt=add_generation_prompt)
    except TemplateFailure as failure:
        message = (
            f"`messages` do not fit the model's chat template, which says: {failure}. Change them to fit."
        )
        raise errors.invalid("messages", message, "chat_template_failed") from failure
    if not rendered:
        raise errors.invalid("messages", "`messages` come to an empty prompt; send at least one character.")
    return rendered


class ChatFormat:
    """OpenAI's `chat.completion` and its chunks; ids are vLLM's extension `return_token_ids`."""

    def __init__(self, id: str, card: ModelCard, prompt: Prompt, with_ids: bool):
        self._head = {"id": id, "created": int(time.time()), "model": card.name}
        self._with_ids = with_ids
        self._prompt_ids = {"prompt_token_ids": list(prompt.ids)} if with_ids else {}

    def whole(self, text: str, generation: Generation) -> dict[str, Any]:
        """The answer in one part, without usage."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": generation.finish,
        } | self._ids(generation.tokens)
        return self._head | {"object": "chat.completion", "choices": [choice]} | self._prompt_ids

    def opening(self) -> Iterable[dict[str, Any]]:
        """Chunks before the first piece: one that names the role."""
        return (self._chunk({"role": "assistant", "content": ""}, None, ()) | self._prompt_ids,)

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """The chunk of a piece of text."""
        return self._chunk({"content": piece.text}, None, piece.tokens)

    def closing(self, generation: Generation) -> dict[str, Any]:
        """The chunk that says why the answer ended."""
        return self._chunk({}, generation.finish, ())

    def account(self) -> dict[str, Any]:
        """A chunk without a choice, for the usage."""
        return self._head | {"object": "chat.completion.chunk", "choices": []}

    def _chunk(self, delta: dict[str, str], finish: str | None, tokens: Iterable[int]) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish} | self._ids(tokens)
        return self._head | {"object": "chat.completion.chunk", "choices": [choice]}

    def _ids(self, tokens: Iterable[int]) -> dict[str, Any]:
        return {"token_ids": list(tokens)} if self._with_ids else {}
