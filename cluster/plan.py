"""The plan of one step: what the head orders and every rank of its replica carries out.

A plan is complete in itself: ranks keep no state of requests, so a rank can never act on something the others do
not know.
"""

import msgspec

from stratakv.storage.moves import Order


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One request's part of a batch.

    `tokens` are the new tokens; `start` is the absolute position of the first of them, so `start` tokens are already
    in the pool; `pages` are the device slots of the pages that hold tokens 0 .. start + len(tokens) - 1, in order;
    `sample` asks for the logits of the last new token.

    `window` are slots of the sliding pool, one for each of the *last* `len(window)` pages in `pages`: all that the
    sliding layers read and write in this step; empty when the model has no such layers. `state` is the slot of the
    recurrent pool that holds the state after `start` tokens and takes the state after the new ones; what is in it is
    ignored when `start` is 0, which begins from nothing. -1 when the model has no recurrent layers.
    """

    tokens: tuple[int, ...]
    start: int
    pages: tuple[int, ...]
    sample: bool
    window: tuple[int, ...] = ()
    state: int = -1


class Plan(msgspec.Struct, frozen=True):
    """Step `number` of a generation. Copies are carried out in order of their numbers, before the rows that need
    them."""

    number: int
    orders: tuple[Order, ...] = ()
    rows: tuple[Row, ...] = ()
