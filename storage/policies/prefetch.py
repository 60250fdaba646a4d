"""How long a request waits for pages from the store. Asked by the head for each request that pages still on their way
hold up, once a step."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

from stratakv.storage.registry import Registry
from stratakv.storage.stores.settings import StoreSettings


class PrefetchState(NamedTuple):
    """A prefetch as its request sees it: `landed` of `pages`, which are `tokens` tokens, are here on all ranks.

    `waited` are the seconds since the request was first held up by it. `to_land` are the seconds that the rest is
    expected to take until it is on the device, by the rate at which it has landed so far or, before the first page,
    the store's running average; `to_compute` those that the model would need for the same tokens at their depth. Both
    are None while nothing has been measured.
    """

    pages: int
    landed: int
    waited: float
    tokens: int = 0
    to_land: float | None = None
    to_compute: float | None = None


class Verdict(StrEnum):
    """What a waiting request does in this step."""

    WAIT = "wait"
    CUT = "cut"
    """Stop reading, use what has landed, compute the rest."""


class PrefetchPolicy(Protocol):
    """Decides for the head alone, so that no rank's clock matters."""

    def verdict(self, state: PrefetchState) -> Verdict:
        """Whether to go on waiting."""


PREFETCH_POLICIES: Registry[Callable[[StoreSettings], PrefetchPolicy]] = Registry(
    "prefetch policy", "store.prefetch_policy"
)
"""Policies by name, made with the settings of the store."""

DEARER = 1.1
"""How many times the seconds of computing `break_even` waits at most."""


@PREFETCH_POLICIES.register("best_effort")
class BestEffort:
    """Takes what has landed by the time that the request could run, and waits for no more.

    Use it when the time to the first token counts most and requests queue anyway: pages land while they do.
    """

    def __init__(self, settings: StoreSettings | None = None):
        pass

    def verdict(self, state: PrefetchState) -> Verdict:
        """To cut at the first look."""
        return Verdict.CUT


@PREFETCH_POLICIES.register("wait_complete")
class WaitComplete:
    """Waits for everything that the store promised.

    Use it when the store is much quicker than computing again: long histories, a slow device, a local or fast network
    store. `store.deadline` bounds the wait all the same.
    """

    def __init__(self, settings: StoreSettings | None = None):
        pass

    def verdict(self, state: PrefetchState) -> Verdict:
        """Always to wait."""
        return Verdict.WAIT


@PREFETCH_POLICIES.register("timeout")
class Timeout:
    """Waits `store.prefetch_timeout_base` seconds, and `store.prefetch_timeout_per_1024` for each 1,024 tokens of the
    prefetch, from the moment on at which the request was first held up.

    Use it when the time to the first token has a limit that is known in advance, whatever the model and the store do.
    """

    def __init__(self, settings: StoreSettings):
        self._base = settings.prefetch_timeout_base
        self._per_token = settings.prefetch_timeout_per_1024 / 1024

    def verdict(self, state: PrefetchState) -> Verdict:
        """To cut when the time is over."""
        over = state.waited > self._base + self._per_token * state.tokens
        return Verdict.CUT if over else Verdict.WAIT


@PREFETCH_POLICIES.register("break_even")
class BreakEven:
    """Waits while waiting is cheaper than computing: it cuts when the rest takes over a tenth longer to land than to
    compute, both as measured here.

    Use it unless something speaks against it: it needs no tuning, waits for a quick store and leaves a slow one. While
    either time is unknown it waits, at most until `store.deadline`.
    """

    def __init__(self, settings: StoreSettings | None = None):
        pass

    def verdict(self, state: PrefetchState) -> Verdict:
        """To cut when waiting is the dearer of the two."""
        if state.to_land is None or state.to_compute is None:
            return Verdict.WAIT
        return Verdict.CUT if state.to_land > DEARER * state.to_compute else Verdict.WAIT
