"""Remembers for a while which pages left this replica and why, so that a miss can be given its true name."""

from collections import OrderedDict
from collections.abc import Sequence

from stratakv.storage.tiers import Miss, PageKey


class Departures:
    """The last `capacity` pages that left, by key. What is older than that counts as never seen."""

    def __init__(self, capacity: int = 1 << 16):
        self._capacity = capacity
        self._reasons: OrderedDict[PageKey, Miss] = OrderedDict()

    def note(self, key: PageKey, reason: Miss) -> None:
        """The page `key` has left because of `reason`. Forgets the oldest when full."""
        self.note_run((key,), reason)

    def note_run(self, keys: Sequence[PageKey], reason: Miss) -> None:
        """All these pages have left because of `reason`, one after the other."""
        reasons = self._reasons
        for key in keys:
            if key in reasons:
                reasons.move_to_end(key)
            reasons[key] = reason
        while len(reasons) > self._capacity:
            reasons.popitem(last=False)

    def reason(self, key: PageKey) -> Miss:
        """Why `key` is not here."""
        return self._reasons.get(key, Miss.NEVER_SEEN)

    def reasons(self, keys: Sequence[PageKey]) -> list[Miss]:
        """Why each of `keys` is not here."""
        known, unknown = self._reasons, Miss.NEVER_SEEN
        return [known.get(key, unknown) for key in keys]
