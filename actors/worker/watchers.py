"""Who follows a head's page events, and the numbers of these events, given out in this one place.

Belongs to the endpoint's thread: a snapshot and the batches after it fit because one thread numbers and sends both.
"""

from collections.abc import Iterator
from enum import Enum

from stratakv.cluster.events import PageEvents, Snapshot, pack_changes, pack_snapshot
from stratakv.storage.residence import Changes, Holdings


class _Stand(Enum):
    ASKED = "asked"
    """It has sent Watch, and the engine has not answered yet."""
    FOLLOWS = "follows"


class Watchers:
    """The watchers of one generation of a head. Sends nothing itself."""

    def __init__(self, generation: int):
        self._generation = generation
        self._stands: dict[bytes, _Stand] = {}
        self.sequence = 0
        """The number of the latest batch."""

    def ask(self, client: bytes) -> bool:
        """`client` sent Watch. Whether the engine must be asked for a snapshot: not if that was done and the answer is
        still to come."""
        if self._stands.get(client) is _Stand.ASKED:
            return False
        self._stands[client] = _Stand.ASKED
        return True

    def drop(self, client: bytes) -> bool:
        """`client` is gone or has lost something; it gets nothing more until it watches again. Whether it did watch."""
        return self._stands.pop(client, None) is not None

    def answer(self, client: bytes, holdings: Holdings) -> Iterator[Snapshot]:
        """The snapshot for `client`, which follows from now on. Nothing if it has not asked, or was dropped since."""
        if self._stands.get(client) is not _Stand.ASKED:
            return iter(())
        self._stands[client] = _Stand.FOLLOWS
        return pack_snapshot(self._generation, self.sequence, holdings)

    def number(self, changes: Changes) -> PageEvents | None:
        """`changes` become the next batch. None if nobody follows: then it counts all the same."""
        self.sequence += 1
        if not self.following():
            return None
        return pack_changes(self._generation, self.sequence, changes)

    def following(self) -> list[bytes]:
        """Those who get the latest batch."""
        return [client for client, stand in self._stands.items() if stand is _Stand.FOLLOWS]
