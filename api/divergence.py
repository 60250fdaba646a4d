"""A guess at why a prompt parts from a history that is cached: by the text on both sides of the first token that
differs. Pure; part of `explain`."""

import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Cause(StrEnum):
    """What a prompt has in place of what is cached, in a few fixed words."""

    GOES_ON = "goes on"
    PAGE_TOO_SHORT = "page too short"
    NAMESPACE = "another salt or extra key"
    NO_HISTORY = "no history"
    DATE_OR_TIME = "date or time"
    IDENTIFIER = "id"
    NUMBER = "number"
    REORDERED = "reordered"
    TOKENISED = "other tokens of the same text"
    SYSTEM_PROMPT = "another template or system prompt"
    OTHER_TEXT = "other text"


REMEDIES: dict[Cause, str] = {
    Cause.GOES_ON: "The prompt goes on from a history that was sent before; nothing differs.",
    Cause.PAGE_TOO_SHORT: "Less than one page is shared, and only full pages are reused: a smaller cache.page_size "
    "would help short prompts.",
    Cause.NAMESPACE: "The same tokens came under another extra_key or without a cache_salt: pages are shared only "
    "where both are equal.",
    Cause.NO_HISTORY: "Nothing was sent under this cache_salt and extra_key lately, as far as this gateway remembers. "
    "If one of them changes with each request, nothing can be reused.",
    Cause.DATE_OR_TIME: "A date or time differs. Put it behind what stays the same, or make it coarser.",
    Cause.IDENTIFIER: "An id differs. Put it behind what stays the same, or leave it out.",
    Cause.NUMBER: "A number differs. Put it behind what stays the same, if it must change.",
    Cause.REORDERED: "The same tools or lines come in another order. Sort them, so that they begin alike.",
    Cause.TOKENISED: "The text is the same and its tokens are not: an answer came back that was not generated here, "
    "or the token map has forgotten it.",
    Cause.SYSTEM_PROMPT: "The prompt differs before the first message of the user: another system prompt, tools or "
    "chat template.",
    Cause.OTHER_TEXT: "The text differs here.",
}
"""What each cause means for whoever wrote the prompt."""

_MONTHS = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAYS = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
_TIMES = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})?)?"
    r"|\d{4}/\d{1,2}/\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}"
    r"|\d{1,2}:\d{2}(?::\d{2})?(?:\.\d+)?(?: ?[AaPp][Mm])?"
    rf"|(?:{_DAYS},? )?\d{{1,2}}(?:st|nd|rd|th)? {_MONTHS}(?:,? \d{{4}})?"
    rf"|(?:{_DAYS},? )?{_MONTHS} \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?|{_MONTHS} \d{{4}}|\b{_DAYS}\b"
    r"|\b1[4-9]\d{8}(?:\d{3})?\b"  # seconds or milliseconds since 1970, from 2014 to 2033
)
_IDS = re.compile(
    r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
    r"|\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"
    r"|\b(?=\w*\d)(?=\w*[A-Za-z])\w{10,}\b"
)
_NUMBERS = re.compile(r"\d[\d.,_]*")
_KINDS = ((Cause.DATE_OR_TIME, _TIMES), (Cause.IDENTIFIER, _IDS), (Cause.NUMBER, _NUMBERS))

_NAMED = re.compile(r'"name"\s*:\s*"([^"]+)"')
_SAME_TEXT = 16  # characters that must be equal to say that a text is the same
_FEWEST = 2  # items that can be in another order
_REACH = 80  # characters of the common text in which what differs may have begun


class Sides(NamedTuple):
    """Text around the first token that differs: the end of what is common, and how each side goes on."""

    common: str
    here: str
    there: str


def guess(sides: Sides, in_head: bool) -> Cause:
    """Why the sides differ. `in_head` says that they do so before the first message of a user.

    What one side has must be what the other has too: a date that stands where another date stood.
    """
    shorter = min(len(sides.here), len(sides.there))
    if shorter >= _SAME_TEXT and sides.here[:shorter] == sides.there[:shorter]:
        return Cause.TOKENISED
    here, there = sides.common + sides.here, sides.common + sides.there
    if _reordered(_NAMED.findall(here), _NAMED.findall(there)) or _reordered(_lines(here), _lines(there)):
        return Cause.REORDERED
    common = sides.common[-_REACH:]
    for cause, pattern in _KINDS:
        spans = [_span(pattern, common + side, len(common)) for side in (sides.here, sides.there)]
        if all(spans) and max(spans) > 1:
            return cause
    return Cause.SYSTEM_PROMPT if in_head else Cause.OTHER_TEXT


def _span(pattern: re.Pattern[str], text: str, at: int) -> int:
    """How a match of `pattern` in `text` lies to the character at `at`: 2 with it, 1 up to it (the sides part where
    the shorter of two numbers ends), 0 elsewhere."""
    for found in pattern.finditer(text[: at + _REACH]):
        if found.start() <= at <= found.end():
            return 2 if at < found.end() else 1
    return 0


def _lines(text: str) -> list[str]:
    """Whole lines that say something; the last may be cut off."""
    return [line.strip().rstrip(",") for line in text.split("\n")[:-1] if len(line.strip()) > 1]


def _reordered(here: Sequence[str], there: Sequence[str]) -> bool:
    """Whether both begin with the same two or more items, of which not all are equal, in another order."""
    surplus: Counter[str] = Counter()
    differ = 0
    for one, other in zip(here, there, strict=False):
        differ += one != other
        surplus[one] += 1
        surplus[other] -= 1
        if differ >= _FEWEST and not any(surplus.values()):
            return True
    return False
