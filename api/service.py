"""What the routes of one app share."""

from collections.abc import Iterator
from contextlib import contextmanager

from stratakv.api import errors
from stratakv.api.backend import Backend
from stratakv.api.prompts import Prompts
from stratakv.api.recent import RecentPrompts
from stratakv.api.settings import ApiSettings
from stratakv.api.text import Text, TextCodec, TokenizerUnavailable
from stratakv.api.token_map import TokenMaps
from stratakv.cluster.messages import ModelCard
from stratakv.cluster.metrics import Metrics


class Service:
    """The backend, the tokenizer, the token map, the latest histories, the limits and the metrics of one app."""

    def __init__(self, backend: Backend, codec: TextCodec, settings: ApiSettings, metrics: Metrics):
        self.backend = backend
        self.settings = settings
        self.metrics = metrics
        self.codec = codec
        self.prompts = Prompts(TokenMaps(settings.token_map_memory, settings.token_map_tenant_memory))
        self.recent = RecentPrompts(settings.explain_prompts, settings.explain_memory)
        self._in_flight = 0

    def card(self, model: str | None) -> ModelCard:
        """The card of `model`, None for the one that is served. Raises ApiError: 404 for another, 503 for none yet."""
        card = self.backend.card()
        if card is None:
            raise errors.unavailable(
                "No replica is ready yet. GET /ready says when; send the request again then."
            )
        if model is not None and model != card.name:
            raise errors.unknown_model(model, card.name)
        return card

    async def text(self, card: ModelCard) -> Text:
        """The tokenizer of `card`, waited for if it is being loaded. Raises ApiError."""
        try:
            return await self.codec.text(card, self.settings.tokenizer_timeout)
        except TokenizerUnavailable as error:
            raise errors.unavailable(f"The server is not ready: {error}.") from error

    @contextmanager
    def place(self) -> Iterator[None]:
        """One of the places for requests at work. Raises ApiError 429 when none is free."""
        limit = self.settings.max_requests
        if self._in_flight >= limit:
            raise errors.overloaded(
                f"This gateway works on {limit} requests already (`max_requests`). Retry later."
            )
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
