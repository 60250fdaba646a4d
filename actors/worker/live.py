"""The requests that a client has at a head, and a way for other threads to wait for the end of one."""

import threading
from collections.abc import Iterable, Iterator


class LiveRequests:
    """Ids of requests. One thread changes them; any thread may wait."""

    def __init__(self) -> None:
        # Single reads and writes of a dict are atomic, and an end is final: no lock is needed.
        self._ended: dict[str, threading.Event] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._ended

    def __iter__(self) -> Iterator[str]:
        return iter(self._ended)

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, id: str) -> None:
        """A request has begun."""
        self._ended[id] = threading.Event()

    def end(self, ids: Iterable[str]) -> None:
        """These are over: wake whoever waits for them. Unknown ids are ignored."""
        for id in ids:
            event = self._ended.pop(id, None)
            if event is not None:
                event.set()

    def wait(self, id: str, deadline: float) -> None:
        """Return when request `id` has ended, or after `deadline` seconds; at once if it is not live."""
        event = self._ended.get(id)
        if event is not None:
            event.wait(deadline)
