"""Where the pages of a prompt are at one replica, and why the others are not: asked by a gateway for `explain`.

A gateway sends `Explain` with page keys; the head answers with `Explained`, once, for that `id`. Nothing is reserved,
loaded or counted as a use: to look changes nothing.
"""

import msgspec


class Stretch(msgspec.Struct, frozen=True):
    """`pages` pages in a row that no tier can give, for one reason, in the words of `tiers.Miss`."""

    pages: int
    reason: str


class ExplainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Pages of a prompt by the tier that would serve them if it came now: `device` first, then those of the `host`
    alone, then `store`. `misses` are all pages after these, in order."""

    device: int = 0
    host: int = 0
    store: int = 0
    misses: tuple[Stretch, ...] = ()


class Explain(msgspec.Struct, frozen=True, tag="explain"):
    """Gateway to head: where are these pages? `keys` are packed, in order, from the first page on; `id` is unique among
    those of this gateway that are not answered yet."""

    id: str
    keys: bytes


class Explained(msgspec.Struct, frozen=True, tag="explained"):
    """The answer to `Explain`."""

    generation: int
    id: str
    answer: ExplainAnswer
