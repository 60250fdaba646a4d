"""What the router decided, and what then happened: the last routes by number."""

from itertools import islice

import msgspec

from stratakv.cluster.routing.route import Actual, Receipt, Route


class Receipts:
    """The last `capacity` receipts, numbered from `first` on."""

    def __init__(self, capacity: int, first: int):
        self._capacity = capacity
        self._receipts: dict[int, Receipt] = {}
        self.next_id = first
        """The number of the next receipt."""

    def __len__(self) -> int:
        return len(self._receipts)

    def add(self, route: Route, tokens: int) -> None:
        """Remember `route` for a prompt of `tokens` tokens under `route.receipt`, which is `next_id`. Forgets the
        oldest when full."""
        self._receipts[route.receipt] = Receipt(route=route, tokens=tokens)
        self.next_id = route.receipt + 1
        if len(self._receipts) > self._capacity:
            del self._receipts[next(iter(self._receipts))]

    def settle(self, actual: Actual) -> Receipt | None:
        """Enter what happened. The receipt as it is now; None if it is not remembered or was settled before."""
        receipt = self._receipts.get(actual.receipt)
        if receipt is None or receipt.actual is not None:
            return None
        settled = self._receipts[actual.receipt] = msgspec.structs.replace(receipt, actual=actual.usage)
        return settled

    def get(self, id: int) -> Receipt | None:
        """The receipt of that number, if it is remembered."""
        return self._receipts.get(id)

    def latest(self, count: int) -> list[Receipt]:
        """The last `count` receipts, the newest first."""
        return list(islice(reversed(self._receipts.values()), count))
