"""How quick this replica is: what a prefill costs here, and what the store takes to deliver. The head notes what it
sees and asks before it decides whether a request goes on waiting for the store.

Nothing here has a clock: whoever notes brings the seconds.
"""

from collections import deque
from itertools import combinations
from statistics import median
from typing import NamedTuple

_WINDOW = 24  # observations a fit is made of: 276 pairs, some 100 microseconds
_FEWEST_TOKENS = 16  # a step of fewer tokens costs what any step costs, and says nothing of a token
_SPREAD = 0.25  # of the depths seen, that two observations must be apart to tell a slope
_NEWEST = 0.2  # weight of the newest observation in a running average


class _Seen(NamedTuple):
    depth: float
    per_token: float


class _Line(NamedTuple):
    a: float
    b: float


class PrefillRate:
    """Seconds of a prefill, fitted to the last 24 observations: `seconds = tokens * (a + b * depth)`.

    `depth` is the mean position of the tokens, `start + tokens / 2`: attention reads all that comes before. The fit is
    Theil and Sen's: b is the median of the slopes between observations whose depths differ by a quarter of the range
    seen or more, at least 0; a the median of what is left of each. So single observations far off (a step that the
    machine was busy in) change nothing, and a lasting change counts fully after twelve steps.
    """

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=_WINDOW)
        self._line: _Line | None = None

    def note(self, start: int, tokens: int, seconds: float) -> None:
        """A prefill of `tokens` tokens from position `start` on took `seconds`. Fewer than 16 tokens are ignored."""
        if tokens >= _FEWEST_TOKENS and seconds > 0:
            self._seen.append(_Seen(start + tokens / 2, seconds / tokens))
            self._line = None

    def predict(self, start: int, tokens: int) -> float | None:
        """Seconds that `tokens` tokens from position `start` on would take; None before the first observation."""
        if not self._seen:
            return None
        if self._line is None:
            self._line = self._fit()
        return tokens * (self._line.a + self._line.b * (start + tokens / 2))

    def _fit(self) -> _Line:
        depths = [seen.depth for seen in self._seen]
        apart = _SPREAD * (max(depths) - min(depths))
        slopes = [
            (one.per_token - other.per_token) / (one.depth - other.depth)
            for one, other in combinations(self._seen, 2)
            if one.depth != other.depth and abs(one.depth - other.depth) >= apart
        ]
        b = max(0.0, median(slopes)) if slopes else 0.0
        return _Line(max(0.0, median(seen.per_token - b * seen.depth for seen in self._seen)), b)


class LandingRate:
    """Seconds of a read from the store: running averages over its prefetches, and what the one in question has shown.

    `latency` is the time to the first pages of a prefetch, `seconds_per_page` that of each page from then on. The
    newest prefetch counts a fifth, and for `seconds_per_page` in proportion to its pages.
    """

    def __init__(self) -> None:
        self.latency: float | None = None
        """Seconds from the order of a prefetch to its first pages; None before the first one."""
        self._seconds = 0.0
        self._pages = 0.0

    @property
    def seconds_per_page(self) -> float | None:
        """Seconds of a page once they land; None before the first prefetch."""
        return self._seconds / self._pages if self._pages else None

    def note(self, pages: int, seconds: float, latency: float) -> None:
        """A prefetch landed `pages` pages (1 or more) within `seconds` of its order, the first after `latency`."""
        if pages < 1:
            return
        keep = 1 - _NEWEST
        self.latency = latency if self.latency is None else keep * self.latency + _NEWEST * latency
        self._seconds = keep * self._seconds + _NEWEST * max(0.0, seconds - latency)
        self._pages = keep * self._pages + _NEWEST * pages

    def doubt(self) -> None:
        """A read was given up for these averages before it landed anything. They shrink by a fifth, so that a store
        that was slow once is tried again."""
        keep = 1 - _NEWEST
        self.latency = None if self.latency is None else keep * self.latency
        self._seconds *= keep

    def predict(self, pages_left: int, landed: int = 0, elapsed: float = 0.0) -> float | None:
        """Seconds until `pages_left` more pages are in host memory, of a prefetch that has `landed` so many within the
        `elapsed` seconds since its order. None while nothing is known of the store.

        Once a page has landed, by this prefetch alone: `pages_left * elapsed / landed`. Before that by the averages:
        `pages_left * seconds_per_page + |latency - elapsed|`. A store that is late is expected to be as late again, so
        the answer grows while it is silent and a policy can act on it.
        """
        if pages_left <= 0:
            return 0.0
        if landed > 0:
            return pages_left * elapsed / landed
        per_page = self.seconds_per_page
        if self.latency is None or per_page is None:
            return None
        return pages_left * per_page + abs(self.latency - elapsed)
