"""Asks the store which pages it has, off the engine's thread. Only the head asks; ranks just read."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from stratakv.storage.restore import in_every
from stratakv.storage.stores.answers import Shelf
from stratakv.storage.stores.store import Store
from stratakv.storage.tiers import Component, PageKey

_log = logging.getLogger(__name__)

Presence = Mapping[Component, Sequence[bool]]
"""By component, which pages of a history are there: one entry per page, False where nobody asked."""


class StoreLookup:
    """Looks keys up in `store` on two threads. `shelves` says, by component, in which groups a page must be, those of
    all ranks together; what goes with full pages is asked for with them."""

    def __init__(self, store: Store, shelves: Mapping[Component, Sequence[Shelf]]):
        self._store = store
        self._shelves = shelves
        self._threads = ThreadPoolExecutor(2, "store-lookup")

    def ask(
        self, keys: Sequence[PageKey], first: Mapping[Component, int], answer: Callable[[Presence], None]
    ) -> None:
        """Find which of `keys` the store has, of each component from page number `first` on, and call `answer` from
        another thread. A store that fails has none. Returns at once."""
        self._threads.submit(self._look, keys, first, answer)

    def close(self) -> None:
        """Look nothing up any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _look(
        self, keys: Sequence[PageKey], first: Mapping[Component, int], answer: Callable[[Presence], None]
    ) -> None:
        found: dict[Component, Sequence[bool]] = {component: [False] * len(keys) for component in first}
        try:
            for component, start in first.items():
                there = [
                    self._store.exists(shelf.component, shelf.group, keys[start:])
                    for shelf in self._shelves[component]
                ]
                found[component] = [False] * start + in_every(there)
        except Exception:
            _log.exception("a look-up in the store failed; the pages will be computed")
        answer(found)
