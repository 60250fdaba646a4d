"""Asks the store which pages it has, off the engine's thread. Only the head asks; ranks just read."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from stratakv.storage.layout import Group
from stratakv.storage.restore import ALL_PAGES, Presence, in_every, restorable
from stratakv.storage.stores.store import Store
from stratakv.storage.tiers import Component, PageKey

_log = logging.getLogger(__name__)


class StoreLookup:
    """Looks keys up in `store`, in all `groups`, on two threads."""

    def __init__(self, store: Store, groups: Sequence[Group] = (Group(),)):
        self._store = store
        self._groups = groups
        self._threads = ThreadPoolExecutor(2, "store-lookup")

    def ask(self, keys: Sequence[PageKey], answer: Callable[[int], None]) -> None:
        """Find how many of `keys`, from the first on, the store can give back, and call `answer` with the number from
        another thread. A store that fails has none. Returns at once."""
        self._threads.submit(self._look, keys, answer)

    def close(self) -> None:
        """Look nothing up any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _look(self, keys: Sequence[PageKey], answer: Callable[[int], None]) -> None:
        pages = 0
        try:
            found = in_every([self._store.exists(Component.FULL, group, keys) for group in self._groups])
            pages = restorable(len(keys), [Presence(ALL_PAGES, found)]).longest
        except Exception:
            _log.exception("a look-up in the store failed; the pages will be computed")
        answer(pages)
