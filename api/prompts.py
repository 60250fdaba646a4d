"""The prompt of a request as tokens: text goes through the token map, so that a growing conversation stays exact."""

from __future__ import annotations  # array[int] is no type before Python 3.12

import asyncio
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from stratakv.api.text import Text
from stratakv.api.token_map import Mark, Match, TokenMaps, prefix_digests
from stratakv.cluster.metrics import MapOutcome

_MAX_MARKS = 256  # per prompt; of more special tokens the last are kept, where conversations part


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose texts these are. Nothing that one tenant said changes another's tokens."""

    cache_salt: str | None = None
    extra_key: str | None = None
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """How a text became tokens: what has to be known to remember its continuation."""

    scope: object
    text: str
    digests: list[bytes]
    lead: int
    """Tokens in front that belong to no text."""
    marks: list[Mark]
    match: Match | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's token ids; `origin` is None when the client sent ids."""

    ids: array[int]
    origin: Origin | None = None

    @property
    def outcome(self) -> MapOutcome | None:
        """How far the text was known; None for ids."""
        if self.origin is None:
            return None
        return self.origin.match.kind if self.origin.match else MapOutcome.MISS


class Prompts:
    """Makes prompts and remembers what was said to them. Texts are encoded in threads; safe to use from both."""

    def __init__(self, maps: TokenMaps):
        self._maps = maps
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Memory of the token map."""
        return self._maps.bytes

    async def chat(self, text: Text, rendered: str, tenant: Tenant) -> Prompt:
        """The prompt of a rendered conversation: the template wrote every special token itself."""
        return await asyncio.to_thread(self._make, text, rendered, tenant, array("I"))

    async def completion(self, text: Text, prompt: str, tenant: Tenant) -> Prompt:
        """The prompt of a plain text, with what the tokenizer puts before it."""
        return await asyncio.to_thread(self._make, text, prompt, tenant, text.lead)

    def remember(self, prompt: Prompt, tokens: Sequence[int], said: str) -> None:
        """`tokens` were said to `prompt`, and sent as the text `said`. Ids that a client sent are not remembered.

        Tokens without any text are not either: the same prompt, sent again, would come with an answer.
        """
        origin = prompt.origin
        if origin is None:
            return
        whole = origin.text + said
        ids = prompt.ids[origin.lead :] + array("I", tokens if said else ())
        marks = list(origin.marks)
        known = marks[-1].characters if marks else origin.match.characters if origin.match else 0
        if len(whole) > known:
            marks.append(Mark(len(whole), len(ids), MapOutcome.END))
        digests = prefix_digests(whole, origin.digests)
        with self._lock:
            self._maps.store(origin.scope, whole, digests, ids, marks, origin.match)

    def _make(self, text: Text, prompt: str, tenant: Tenant, lead: array[int]) -> Prompt:
        scope = (tenant, bytes(lead))
        digests = prefix_digests(prompt)
        with self._lock:
            match = self._maps.lookup(scope, prompt, digests, lambda at: text.may_cut(prompt, at))
        if match is None:
            encoded, characters, ids = text.encode(prompt), 0, lead
        else:
            encoded, characters, ids = (
                text.encode_after(prompt[match.characters :]),
                match.characters,
                lead + match.ids,
            )
        before = len(ids) - len(lead)
        marks = [
            Mark(characters + cut.characters, before + cut.tokens, MapOutcome.SPECIAL)
            for cut in encoded.cuts[-_MAX_MARKS:]
        ]
        origin = Origin(scope, prompt, digests, len(lead), marks, match)
        return Prompt(ids + encoded.ids, origin)
