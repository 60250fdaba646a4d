"""The store of a replay: which pages it has, and which go when it is full. All replicas share one."""

from collections import OrderedDict
from collections.abc import Sequence

from stratakv.storage.moves import PageStamp
from stratakv.storage.tiers import PageKey


class Shelf:
    """A set of pages, at most `capacity` of them (None: any number).

    Collects as every store does (storage/stores/collect.py): the page whose latest use, and that of all pages below it,
    is longest ago goes first, of equals the deepest. Reads and writes are uses; hits that a higher tier served are not.
    """

    def __init__(self, capacity: int | None):
        self._capacity = capacity
        # From the first to go to the last. Whenever a page is used its ancestors move behind it, one after the other,
        # so a page always stands before its parent.
        self._parents: OrderedDict[PageKey, PageKey] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parents)

    def __contains__(self, key: PageKey) -> bool:
        return key in self._parents

    def leading(self, keys: Sequence[PageKey]) -> int:
        """How many of `keys`, from the first on, are here without a gap."""
        return next((n for n, key in enumerate(keys) if key not in self._parents), len(keys))

    def read(self, stamps: Sequence[PageStamp]) -> int:
        """Use these pages, a stretch of one history. Returns how many were here, from the first on."""
        found = self.leading([stamp.key for stamp in stamps])
        if found:
            self._use(stamps[found - 1].key)
        return found

    def put(self, stamps: Sequence[PageStamp]) -> None:
        """Add these pages, stretches of any histories; those that go for them may be among them."""
        last = len(stamps) - 1
        for position, stamp in enumerate(stamps):
            self._parents[stamp.key] = stamp.parent
            if position == last or stamps[position + 1].parent != stamp.key:
                self._use(stamp.key)
        while self._capacity is not None and len(self._parents) > self._capacity:
            self._parents.popitem(last=False)

    def _use(self, key: PageKey) -> None:
        if self._capacity is None:
            return  # nothing ever goes, so no order is kept
        while key in self._parents:
            self._parents.move_to_end(key)
            key = self._parents[key]
