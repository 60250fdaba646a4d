"""One request from its prompt to the last piece of its answer: what chat and text completions share.

Deltas of the backend become pieces of text; stop strings end it early; whatever ends it, the backend's iterator is
closed, the token map learns what was said, and the account goes to the metrics and the access log.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from stratakv.api import errors
from stratakv.api.backend import BackendUnavailable
from stratakv.api.detokenizer import Transcript
from stratakv.api.observe import CLIENT_GONE, Observation
from stratakv.api.prompts import Prompt, Tenant
from stratakv.api.service import Service
from stratakv.api.stops import StopMatcher
from stratakv.api.text import Text
from stratakv.api.usage import usage_sentence
from stratakv.cluster.messages import Delta, FinishReason, Generate, ModelCard, Usage

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT = 5.0  # seconds the backend has to take back a request that is given up


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added: text that may be sent, and the tokens that came, whose text may still be held back."""

    text: str
    tokens: tuple[int, ...]


class Generation:
    """One answer in the making. Iterate `pieces` once; `finish`, `usage` and `tokens` are complete after the last."""

    def __init__(
        self,
        service: Service,
        seen: Observation,
        kind: str,
        request: Generate,
        prompt: Prompt,
        card: ModelCard,
        text: Text,
        stops: Sequence[str],
    ):
        """`kind` is how the access log calls it, such as `chat`."""
        self._service = service
        self._seen = seen
        self._kind = kind
        self._request = request
        self._prompt = prompt
        self._unseen = frozenset(card.eos_token_ids) | text.special_ids
        self._transcript = Transcript(text.detokenizer(prompt.ids))
        self._stops = StopMatcher(stops)
        self._sent = 0
        self._first: float | None = None
        self._last = 0.0
        self._usage: Usage | None = None
        self._error: errors.ApiError | None = None
        self.finish: FinishReason | None = None
        """Why the answer ended, None until it has."""

    @property
    def tokens(self) -> list[int]:
        """All output tokens so far."""
        return self._transcript.tokens

    @property
    def usage(self) -> Usage:
        """The account of the prompt, as last reported."""
        prompt = len(self._prompt.ids)
        return self._usage or Usage(prompt=prompt, computed=prompt, misses={"not reported": prompt})

    async def pieces(self) -> AsyncGenerator[Piece]:
        """One piece for each delta; the first says that the request was taken. Raises ApiError.

        To close it early, or to cancel who waits for it, aborts the request.
        """
        # Protocols cannot say it: the iterator of an async generator function is one that can be closed.
        deltas = self._service.backend.generate(self._request)
        try:
            while self.finish is None:
                yield self._take(await self._next(deltas))
        except Exception as error:
            self._error = error if isinstance(error, errors.ApiError) else errors.internal()
            raise
        finally:
            await self._close(deltas)
            self._settle()

    async def _next(self, deltas: AsyncGenerator[Delta]) -> Delta:
        limit = self._service.settings.delta_timeout
        try:
            async with asyncio.timeout(limit):
                delta = await anext(deltas, None)
        except BackendUnavailable as error:
            raise errors.from_backend(error) from error
        except TimeoutError:
            raise errors.unavailable(
                f"The replica was silent for {limit:g} seconds. Send the request again."
            ) from None
        if delta is None or delta.finish is FinishReason.ABORT:
            raise errors.unavailable("The replica gave the answer up before its end. Send the request again.")
        if delta.failure is not None:
            raise errors.from_failure(delta.failure)
        return delta

    def _take(self, delta: Delta) -> Piece:
        self._usage = delta.usage or self._usage
        self._clock(len(delta.tokens))
        shown: tuple[int, ...] = delta.tokens
        stop_token = None
        if delta.finish is FinishReason.STOP and shown and shown[-1] in self._unseen:
            shown, stop_token = shown[:-1], shown[-1]
        arrived = "".join([self._transcript.push(token) for token in shown])
        if delta.finish is not None:
            arrived += self._transcript.end(stop_token)
        text = self._stops.feed(arrived)
        if self._stops.matched is not None:
            self.finish = FinishReason.STOP
        elif delta.finish is not None:
            text += self._stops.flush()
            self.finish = delta.finish
        self._sent += len(text)
        return Piece(text, delta.tokens)

    def _clock(self, tokens: int) -> None:
        if not tokens:
            return
        now = time.monotonic()
        if self._first is None:
            self._first = now - self._seen.began
            self._service.metrics.first_token(self._first)
        else:
            self._service.metrics.next_tokens(tokens, now - self._last)
        self._last = now

    async def _close(self, deltas: AsyncGenerator[Delta]) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await deltas.aclose()
        except Exception:
            _log.exception("request %s could not be taken back from the backend", self._request.id)

    def _settle(self) -> None:
        """Tell what became of it. A request that no replica took has no account."""
        if self._usage is None and not self.tokens:
            return
        whole = self._transcript.whole_tokens(self._sent)
        said = self._transcript.text(whole.characters)
        self._service.prompts.remember(self._prompt, self.tokens[: whole.tokens], said)
        tenant = Tenant(self._request.cache_salt, self._request.extra_key)
        self._service.recent.remember(tenant, self._prompt.ids, self.tokens)
        self._service.metrics.usage(self.usage, len(self.tokens))
        self._seen.sentence = self._sentence()
        if self._error is not None:
            self._seen.status = self._error.status
        elif self.finish is None:
            self._seen.status = CLIENT_GONE

    def _sentence(self) -> str:
        if self._error is not None:
            end = f"failed: {self._error.message}"
        elif self.finish is None:
            end = "left by its client"
        else:
            end = f"finished by {self.finish.value}"
        first = f", first token after {self._first * 1000:.0f} ms" if self._first is not None else ""
        account = f"{usage_sentence(self.usage)}, {len(self.tokens)} out{first}, {end}"
        return f"{self._kind} {self._request.id[-8:]}: {account}"
