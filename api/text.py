"""Text and tokens: the one module that knows a tokenizer. Loads it when it is first wanted, off the event loop."""

from __future__ import annotations  # array[int] is no type before Python 3.12

import asyncio
import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import tokenizers

from stratakv.api.detokenizer import Detokenizer
from stratakv.cluster.messages import ModelCard

_log = logging.getLogger(__name__)


class TemplateFailure(Exception):
    """The model's chat template has no rendering for these messages; the text is the template's own."""


class TokenizerUnavailable(Exception):
    """The tokenizer is not loaded, or cannot be; the text says why, without paths."""


class Cut(NamedTuple):
    """The end of a special token in a text: what comes after it is encoded without regard to what is before."""

    characters: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text's ids, and where it may be cut."""

    ids: array[int]
    cuts: list[Cut]


Template = Callable[[Sequence[Mapping[str, Any]], bool], str]
"""Renders messages, with or without the opening of an answer, to the text of a prompt."""


class Text:
    """One model's tokenizer and chat template. Thread-safe: nothing changes after it is made.

    `template` is None for a model that has no chat template.
    """

    def __init__(self, core: tokenizers.Tokenizer, template: Template | None = None):
        core.no_truncation()
        core.no_padding()
        self._core = core
        self._template = template
        added = core.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        """Ids that have no text in an answer."""
        plain = {
            id: token.content
            for id, token in added.items()
            if token.special and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        }
        self._plain = frozenset(plain)
        self._plain_texts = tuple(plain.values())
        self._anchor = next(iter(plain.values()), "")
        self.lead = self._find_lead()
        """Ids that the tokenizer puts before a text that is no chat, such as BOS."""
        self._joins = self._can_join()
        self.longest_token = self._find_longest()
        """Characters that one token can stand for at most; None when the tokenizer rewrites text first."""

    def _find_longest(self) -> int | None:
        if self._core.normalizer is not None:
            return None
        # In a vocabulary of bytes a character is one or more symbols, never less: lengths are upper bounds.
        return max(map(len, self._core.get_vocab(with_added_tokens=True)), default=None)

    @classmethod
    def load(cls, path: str) -> Self:
        """The tokenizer of the Hugging Face directory or hub name `path`. Slow: run it in a thread.

        Raises ValueError when there is no fast tokenizer, and whatever transformers raises.
        """
        from transformers import AutoTokenizer  # seconds; nothing else of this floor needs it

        loaded = AutoTokenizer.from_pretrained(path)
        if not loaded.is_fast:
            raise ValueError("the model has no fast tokenizer (tokenizer.json); convert it first")

        def render(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
            text = loaded.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
            assert isinstance(text, str)
            return text

        return cls(loaded.backend_tokenizer, render if loaded.chat_template else None)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation as the model wants it. Raises TemplateFailure."""
        if self._template is None:
            raise TemplateFailure("the model has no chat template; use /v1/completions")
        try:
            return self._template(messages, add_generation_prompt)
        except Exception as error:  # a template is a program of the model's author and may raise anything
            raise TemplateFailure(str(error) or type(error).__name__) from error

    def encode(self, text: str) -> Encoded:
        """Ids of `text` as it stands: nothing is put before or after it."""
        return self._encode("", text)

    def encode_after(self, text: str) -> Encoded:
        """Ids of `text` where it goes on from other text, at a place that `may_cut` allows."""
        return self._encode(self._anchor, text)

    def may_cut(self, text: str, at: int) -> bool:
        """Whether `text[at:]` may be encoded by itself and put after other tokens of `text[:at]`."""
        return (
            self._joins
            or at == len(text)
            or text.startswith(self._plain_texts, at)
            or text.endswith(self._plain_texts, 0, at)
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included."""
        return self._core.decode(list(ids), skip_special_tokens=False)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Each id as the vocabulary writes it."""
        return [self._core.id_to_token(id) or "" for id in ids]

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """Turns tokens that follow `prompt` into text."""
        return Detokenizer(self._core, prompt)

    def _encode(self, anchor: str, text: str) -> Encoded:
        # Of all ways to encode, only a batch lets the event loop run meanwhile: the others keep Python's lock.
        [encoding] = self._core.encode_batch([anchor + text], add_special_tokens=False)
        skip = 1 if anchor else 0
        ids = encoding.ids
        cuts = [
            Cut(span[1] - len(anchor), index + 1 - skip)
            for index in range(skip, len(ids))
            if ids[index] in self._plain and (span := encoding.token_to_chars(index)) is not None
        ]
        return Encoded(array("I", ids[skip:]), cuts)

    def _find_lead(self) -> array[int]:
        """What the tokenizer puts before a text. What it puts after one would come between prompt and answer."""
        bare = self._core.encode("a", add_special_tokens=False).ids
        full = self._core.encode("a", add_special_tokens=True).ids
        before = next((at for at in range(len(full)) if full[at : at + len(bare)] == bare), 0)
        return array("I", full[:before])

    def _can_join(self) -> bool:
        """Whether a text that is cut anywhere reads the same: false where each part gets a space in front."""
        parts = [*self.encode("a").ids, *self.encode_after("b c").ids]
        return self._core.decode(parts) == self._core.decode(self.encode("ab c").ids)


class TextCodec:
    """The `Text` of the model that is served. `load` makes it from the card's path, once, in a thread."""

    def __init__(self, load: Callable[[str], Text] = Text.load):
        self._load = load
        self._texts: dict[str, Text] = {}
        self._loading: dict[str, asyncio.Task[Text]] = {}

    def ready(self, card: ModelCard) -> bool:
        """Whether the tokenizer of `card` is loaded. Starts to load it if it is not."""
        if card.path in self._texts:
            return True
        self._start(card.path)
        return False

    async def text(self, card: ModelCard, timeout: float) -> Text:
        """The tokenizer of `card`, waited for at most `timeout` seconds. Raises TokenizerUnavailable."""
        loaded = self._texts.get(card.path)
        if loaded is not None:
            return loaded
        try:
            return await asyncio.wait_for(asyncio.shield(self._start(card.path)), timeout)
        except TimeoutError:
            raise TokenizerUnavailable("the tokenizer is still being loaded") from None
        except Exception as error:
            raise TokenizerUnavailable("the tokenizer cannot be loaded; the log says why") from error

    def _start(self, path: str) -> asyncio.Task[Text]:
        """The task that loads it; a new one after a failure."""
        task = self._loading.get(path)
        if task is None or task.done():
            task = self._loading[path] = asyncio.create_task(self._run(path))
        return task

    async def _run(self, path: str) -> Text:
        try:
            loaded = self._texts[path] = await asyncio.to_thread(self._load, path)
        except Exception:
            _log.exception(
                "the tokenizer of %s cannot be loaded; --model needs a directory with tokenizer.json", path
            )
            raise
        return loaded
