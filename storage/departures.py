"""Remembers for a while which pages left this replica and why, so that a miss can be given its true name."""

from collections import OrderedDict

from stratakv.storage.tiers import Miss, PageKey


class Departures:
    """The last `capacity` pages that left, by key. What is older than that counts as never seen."""

    def __init__(self, capacity: int = 1 << 16):
        self._capacity = capacity
        self._reasons: OrderedDict[PageKey, Miss] = OrderedDict()

    def note(self, key: PageKey, reason: Miss) -> None:
        """The page `key` has left because of `reason`. Forgets the oldest when full."""
        if key in self._reasons:
            self._reasons.move_to_end(key)
        self._reasons[key] = reason
        if len(self._reasons) > self._capacity:
            self._reasons.popitem(last=False)

    def reason(self, key: PageKey) -> Miss:
        """Why `key` is not here."""
        return self._reasons.get(key, Miss.NEVER_SEEN)
