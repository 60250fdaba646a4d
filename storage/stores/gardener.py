"""Keeps the directory of a file store within its capacity, in a thread of its own.

The directory is the truth, and several processes write into it and collect it. Each takes a census when it opens the
store, and again before it has written half of what it was granted (grants.py); in between it counts only its own.

All follow the same order (collect.py). What was used since the census stays, with its ancestors. In one process a
parent never goes before its child; a child that another process writes within the microseconds between the last look at
its parent and the end of that is left an orphan, which is never restored and goes in its turn.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Lock, Thread

from stratakv.storage.stores import folder
from stratakv.storage.stores.answers import Failure, Put, Stored, Usage
from stratakv.storage.stores.capacity import watermarks
from stratakv.storage.stores.census import Census, FoundPage, Lineage, take_census
from stratakv.storage.stores.collect import Resident, count_orphans, victims
from stratakv.storage.stores.folder import Folder
from stratakv.storage.stores.grants import Grant, granted_to_others, turn
from stratakv.storage.tiers import PageKey

_PATIENCE = 60.0
_IDLE = 60.0
_PAUSE = 0.001
_PART_OF_ROOM = 4


class _Closing(Exception):
    """The store is being closed in the middle of a census."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the last round left: pages, bytes, orphans; and how much this process had written until then."""

    pages: int
    size: int
    orphans: int
    written: int
    plants: int


@dataclass(frozen=True, slots=True)
class Plant:
    """A block that this process has written: its `path`, the page it belongs to (`name`: identity digest and key)."""

    path: str
    name: bytes
    lineage: Lineage
    size: int


class Gardener:
    """Grants room for blocks in `place`, and collects to have some. `page` is the bytes of a page."""

    def __init__(self, place: Folder, capacity: int, page: int):
        self.planting = Lock()
        """Held while a block comes to its name below its parent, and while a page is taken out."""
        self._root = place.root
        self._grant = Grant(place.grant())
        self._capacity = capacity
        self._page = page
        self._lineages: dict[PageKey, Lineage] = {}
        self._fresh: list[Plant] = []
        self._in_use: set[PageKey] = set()
        self._state = Condition()
        self._closed = False
        self._rounds = 0
        self._trouble = ""
        self._seen = _Seen(0, 0, 0, 0, 0)
        self._room = 0
        self._allowance = 0
        self._low_allowance = 0
        self._waiting = 0
        self._pending = 0
        self._written = 0
        self._plants = 0
        self._collected = 0
        self._thread = Thread(target=self._work, name="store-gardener", daemon=True)
        self._thread.start()

    def reserve(self, size: int) -> Stored | None:
        """Wait for leave to write `size` bytes. None, and `planted` or `refund` must follow; or why there is none."""
        with self._state:
            self._waiting += size
            try:
                refusal = self._wait_for_room(size)
            finally:
                self._waiting -= size
            if refusal is None:
                self._allowance -= size
                self._pending += size
                if self._allowance < self._low_allowance:
                    self._state.notify_all()
            return refusal

    def planted(self, plant: Plant) -> None:
        """What was reserved has come to its name. Call with `planting` held since before."""
        self._lineages[plant.name[32:]] = plant.lineage
        self._in_use |= {plant.name[32:], plant.lineage.parent}
        self._fresh.append(plant)
        with self._state:
            self._plants += 1
            self._written += plant.size
            self._settle(plant.size)

    def refund(self, size: int, stored: Stored) -> None:
        """What was reserved has not been used."""
        with self._state:
            if stored.failure is Failure.NO_ROOM:  # the disk has less than was thought: look before the next
                self._allowance = 0
            self._settle(size)

    def usage(self) -> Usage:
        """The last census, and what this process has written since (blocks counted as pages)."""
        with self._state:
            size = self._seen.size + self._written - self._seen.written
            pages = self._seen.pages + self._plants - self._seen.plants
            return Usage(pages, size, self._capacity, self._seen.orphans, self._collected)

    def look(self) -> None:
        """Take a census now, and collect if there is need. Returns when it has ended; at once when closed."""
        with self._state:
            target = self._rounds + 2  # the round under way may have looked before the call
            while self._rounds < target and not self._closed:
                self._low_allowance = self._allowance + 1
                self._state.notify_all()
                self._state.wait(_PATIENCE)

    def close(self) -> None:
        """End the thread; calls that wait for room fail. Harmless when repeated."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._thread.join(_PATIENCE)

    def _settle(self, size: int) -> None:
        self._pending -= size
        with suppress(OSError):  # then the old one stays, which is more
            self._grant.announce(self._allowance + self._pending)

    def _wait_for_room(self, size: int) -> Stored | None:
        first = self._rounds
        self._state.notify_all()

        def looked() -> bool:  # the first round to end may have begun before the call
            return self._rounds > first + 1 and (bool(self._trouble) or self._room < size)

        self._state.wait_for(lambda: self._closed or self._allowance >= size or looked(), _PATIENCE)
        if self._closed:
            return Stored(Put.FAILED, Failure.CLOSED, "the store was closed")
        if self._allowance >= size:
            return None
        if self._trouble:
            return Stored(Put.FAILED, Failure.ERROR, self._trouble)
        return Stored(Put.FAILED, Failure.NO_ROOM, f"{self._room} bytes are left after collection")

    def _work(self) -> None:
        with suppress(_Closing):
            while True:
                trouble = ""
                try:
                    with turn(self._root, self._check):
                        self._round()
                except _Closing:
                    raise
                except Exception as error:  # those who wait for room must hear of it
                    trouble = f"{type(error).__name__}: {error}"
                with self._state:
                    self._trouble = trouble
                    self._rounds += 1
                    self._state.notify_all()
                    self._rest()
        with self._state:
            self._grant.withdraw()

    def _rest(self) -> None:
        """Wait for work. What was granted is given back when it is not used."""
        while True:
            written = self._written
            if self._state.wait_for(self._has_work, _IDLE):
                return
            if written == self._written:
                self._allowance = self._low_allowance = 0
            with suppress(OSError):
                self._grant.refresh()
                self._grant.announce(self._allowance + self._pending)

    def _has_work(self) -> bool:
        return self._closed or self._waiting > self._allowance or self._allowance < self._low_allowance

    def _round(self) -> None:
        """Count what is stored, collect if there is need, and grant a part of the room that is left."""
        self._check()
        with self._state:
            self._grant.refresh()
        with self.planting:
            self._fresh.clear()
            self._in_use.clear()
        others = granted_to_others(self._root, self._grant)
        census = take_census(self._root, self._lineages, self._pause)
        limit = min(self._capacity, census.size + folder.free_bytes(self._root))
        marks = watermarks(limit, self._page)
        with self.planting, self._state:
            size = census.size + self._unseen(census) + self._pending
            spare = self._page if self._waiting else 0
            short = size + others + self._waiting > limit
        if short or size > marks.high:
            self._make_room(census, size - max(0, min(marks.low, limit - others * short - spare)))
        residents = _residents(census)
        orphans = count_orphans(residents)
        stored = {name[32:] for name in census.pages}
        with self.planting, self._state:
            self._forget(stored)
            active = self._waiting or self._written != self._seen.written
            size = census.size + self._unseen(census)
            self._seen = _Seen(len(residents), size, orphans, self._written, self._plants)
            self._room = max(0, limit - others - size - self._pending)
            part = self._room // _PART_OF_ROOM if active else 0
            self._allowance = min(self._room, max(self._waiting, part))
            self._low_allowance = self._allowance // 2
            self._grant.announce(self._allowance + self._pending)

    def _unseen(self, census: Census) -> int:
        """Bytes that were planted since the census began and were not counted in it."""
        return sum(plant.size for plant in self._fresh if not census.has(plant.name, plant.path))

    def _make_room(self, census: Census, size: int) -> None:
        """Take `size` bytes or more out of the directory, and of `census`."""
        for leftover in census.quarantined:
            with suppress(OSError):
                os.unlink(leftover.path)
                census.size -= leftover.size
                size -= leftover.size
        staying: set[bytes] = set()
        for name in victims(_residents(census), size):
            self._check()
            if name not in staying and self._take_out(name[32:], census.pages[name]):
                census.size -= census.pages.pop(name).size
                self._collected += 1
            else:
                staying.add(census.parent_of(name))

    def _take_out(self, key: PageKey, page: FoundPage) -> bool:
        """Delete all blocks of `page`. False if it has been used, or got a child, since the census."""
        with self.planting, suppress(OSError):
            if key in self._in_use or any(_last_use(path) > page.used for path in page.paths):
                return False
            for path in page.paths:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            return True
        return False

    def _forget(self, stored: set[PageKey]) -> None:
        """Keep the lineages of pages that are stored, and of those written meanwhile."""
        for key in self._lineages.keys() - stored - self._in_use:
            del self._lineages[key]

    def _pause(self) -> None:
        """Between two folders of a census: let the threads that serve requests have the interpreter."""
        self._check()
        if not self._waiting:
            time.sleep(_PAUSE)

    def _check(self) -> None:
        if self._closed:
            raise _Closing


def _residents(census: Census) -> dict[bytes, Resident]:
    return {
        name: Resident(census.parent_of(name), page.lineage.depth, page.used, page.size)
        for name, page in census.pages.items()
    }


def _last_use(path: str) -> int:
    with suppress(FileNotFoundError):
        return os.stat(path).st_mtime_ns
    return 0
