"""From output tokens to text, one at a time: what is emitted is always whole characters.

The same pieces make a stream and an answer in one part, so both have the same text. The transcript remembers
which token ended where in the text; the token map needs that after a stop string.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_WINDOW = 8
_MAX_PENDING = 64
_BROKEN = "\ufffd"


class Detokenizer:
    """Turns tokens that follow `context` (the prompt's ids; its end is enough) into text. Special tokens have none.

    The context makes the first piece right where a tokenizer treats the start of a text apart.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int]):
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._pending: list[int] = []
        self._stream = DecodeStream()
        self._restart(context[-_WINDOW:])

    def push(self, token: int) -> str:
        """The text that is complete now; "" while a character is not."""
        self._pending.append(token)
        try:
            text: str | None = self._stream.step(self._tokenizer, token)
        except Exception:  # DecodeStream gives up where bytes change the meaning of text before them
            return self.flush()
        if text is not None:
            self._window = [*self._window, *self._pending][-_WINDOW:]
            self._pending = []
            return text
        # A run without text (hidden tokens, broken bytes) would be decoded again and again from its start.
        return self.flush() if len(self._pending) >= _MAX_PENDING else ""

    def flush(self) -> str:
        """The text of tokens still pending; an incomplete character shows as U+FFFD. More may be pushed after it."""
        before = self._decode(self._window)
        after = self._decode([*self._window, *self._pending])
        text = after[len(before) :] if after.startswith(before) else self._decode(self._pending)
        self._restart([*self._window, *self._pending][-_WINDOW:])
        return text

    def _restart(self, context: Sequence[int]) -> None:
        window = list(context)
        # A context that ends within a character would show it a second time.
        while window and self._decode(window).endswith(_BROKEN):
            window.pop()
        self._window = window
        self._pending = []
        self._stream = DecodeStream(ids=window, skip_special_tokens=True)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)


@dataclass(frozen=True, slots=True)
class WholeTokens:
    """The tokens that lie whole within a text: how many, and how many characters they make."""

    tokens: int
    characters: int


class Transcript:
    """The tokens of one answer, its text, and where in the text each token ended."""

    def __init__(self, detokenizer: Detokenizer):
        self._detokenizer = detokenizer
        self._ends: list[int] = []
        self._parts: list[str] = []
        self._length = 0
        self.tokens: list[int] = []
        """All tokens so far."""

    def push(self, token: int) -> str:
        """Take a token; the text that is complete now."""
        self.tokens.append(token)
        text = self._detokenizer.push(token)
        if text:
            self._place(text)
        return text

    def end(self, stop_token: int | None = None) -> str:
        """The answer is over; the rest of its text. A `stop_token` that ended it is counted but not shown."""
        text = self._detokenizer.flush()
        self._place(text)
        if stop_token is not None:
            self.tokens.append(stop_token)
        return text

    def text(self, length: int) -> str:
        """The first `length` characters."""
        return "".join(self._parts)[:length]

    def whole_tokens(self, length: int) -> WholeTokens:
        """What lies whole within the first `length` characters. A stop token is no part of what was said."""
        count = bisect_right(self._ends, length)
        return WholeTokens(count, self._ends[count - 1] if count else 0)

    def _place(self, text: str) -> None:
        """Tokens that shared the wait for `text` end where it ends: they cannot be told apart."""
        self._parts.append(text)
        self._length += len(text)
        self._ends += [self._length] * (len(self.tokens) - len(self._ends))
