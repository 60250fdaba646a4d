"""How long a request waits for pages from the store. Asked by the head, once a step, for every request that waits."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

from stratakv.storage.registry import Registry


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


PREFETCH_POLICIES: Registry[Callable[[], PrefetchPolicy]] = Registry(
    "prefetch policy", "store.prefetch_policy"
)


@PREFETCH_POLICIES.register("wait_complete")
class WaitComplete:
    """Waits for everything that the store promised.

    Use it when the store is much quicker than computing again: long histories, a slow device, a local or fast network
    store. `store.deadline` bounds the wait all the same.
    """

    def verdict(self, state: PrefetchState) -> Verdict:
        """Always to wait."""
        return Verdict.WAIT
