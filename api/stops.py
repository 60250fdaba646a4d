"""Stop strings, found in text that arrives in pieces. No part of a stop string is ever let through."""

from collections.abc import Sequence


class StopMatcher:
    """Lets text through up to the first stop string, holding back what may yet become one.

    Of several stop strings the one that is complete first wins, and of those that end there the one that begins
    first. So the pieces in which a text arrives make no difference.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found. Nothing is let through after it."""

    def feed(self, text: str) -> str:
        """The text that may be sent now that `text` has arrived."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        text = self._held + text
        hits = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if hits:
            _, at, self.matched = min(hits)
            self._held = ""
            return text[:at]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, once it is known that no more arrives."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with, short of all of it."""
    longest = min(len(stop) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
