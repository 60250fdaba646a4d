"""One replica of a replay: the head's way with a request, on the real hierarchy, with nothing to wait for."""

from collections import Counter
from collections.abc import Sequence

from stratakv.cluster.messages import Usage
from stratakv.cluster.replay.executor import InstantExecutor
from stratakv.cluster.replay.request import ReplayRequest
from stratakv.cluster.replay.settings import ReplicaSettings
from stratakv.cluster.replay.shelf import Shelf
from stratakv.storage.hierarchy import Admission, Asked, Hierarchy
from stratakv.storage.policies.eviction import EVICTION_POLICIES
from stratakv.storage.policies.write import WRITE_POLICIES
from stratakv.storage.pools import SlotPool
from stratakv.storage.prefetch import Stretch
from stratakv.storage.tiers import Miss, PageKey
from stratakv.storage.tree import Tree


class ReplayError(Exception):
    """The workload and the sizes do not go together; the message is for the user."""


class Replica:
    """Serves requests one after the other. Only full pages take room: the last, unfinished page of a running request
    is not counted.

    UnknownName for a policy there is not.
    """

    def __init__(self, settings: ReplicaSettings, shelf: Shelf):
        self.settings = settings
        self._shelf = shelf
        device, host = settings.device_pages, settings.host_pages
        self.hierarchy = Hierarchy(
            Tree(EVICTION_POLICIES.get(settings.eviction_policy)(device + host), has_host=host > 0),
            SlotPool("device", device),
            SlotPool("host", host),
            WRITE_POLICIES.get(settings.write_policy)(),
            InstantExecutor(shelf),
            store_backlog=host if settings.has_store else 0,
        )
        self._least_read = -(-settings.prefetch_threshold // settings.page_size)

    def serve(self, request: ReplayRequest) -> Usage:
        """The whole life of `request`. Returns the account of its prompt. ReplayError when the device is too small."""
        hierarchy, keys = self.hierarchy, request.keys
        reusable = keys[: (request.prompt_tokens - 1) // self.settings.page_size]
        hierarchy.run_ahead(len(keys))
        self._drain()
        fetched = self._fetch(reusable) if self.settings.has_store else range(0)
        admission = self._admit(request, reusable)
        self._let_go()
        hierarchy.absorb()
        hierarchy.commit(admission.lease, keys[admission.device_pages + admission.host_pages :])
        self._drain()
        hierarchy.release(admission.lease)
        return self._account(request.prompt_tokens, admission, fetched)

    def _fetch(self, reusable: Sequence[PageKey]) -> range:
        """Bring what only the store has to host memory, as the head does while a request waits. Returns the numbers of
        the pages that came."""
        fetched, prefetch = range(0), None
        while True:
            match = self.hierarchy.tree.match(reusable)
            missing = reusable[match.held :]
            there = self._shelf.leading(missing) if len(missing) >= self._least_read else 0
            if there < self._least_read:
                return fetched
            stretch = Stretch(reusable, match.held, match.held + there, b"")
            prefetch = self.hierarchy.prefetches.start(match.page, stretch, self._least_read, prefetch)
            if prefetch is None:
                return fetched
            self.hierarchy.absorb()
            fetched = range(fetched.start if fetched else match.held, match.held + prefetch.landed)

    def _let_go(self) -> None:
        """Whatever was brought is not kept any longer."""
        for kept in list(self.hierarchy.prefetches.kept):
            self.hierarchy.prefetches.let_go(kept)

    def _admit(self, request: ReplayRequest, reusable: Sequence[PageKey]) -> Admission:
        hierarchy, pages = self.hierarchy, len(request.keys)
        if pages > self.settings.device_pages:
            raise ReplayError(
                f"{request.name} needs {pages * self.settings.page_size} tokens of device memory, and there are "
                f"{self.settings.device_pages * self.settings.page_size}; raise --device-tokens"
            )
        admission = hierarchy.admit(reusable, pages, Asked())
        if admission is None:
            self._let_go()
            hierarchy.room.reclaim(pages)
            admission = hierarchy.admit(reusable, pages, Asked())
        if admission is None:
            raise ReplayError(
                f"{request.name} found no room on an idle device; this is a fault of the hierarchy"
            )
        return admission

    def _drain(self) -> None:
        """Nothing is in flight any more afterwards, and nothing waits to be written."""
        self.hierarchy.absorb()
        while self.hierarchy.in_flight or self.hierarchy.writes.pending:
            self.hierarchy.absorb()

    def _account(self, prompt: int, admission: Admission, fetched: range) -> Usage:
        page = self.settings.page_size
        device, loaded = admission.device_pages * page, admission.host_pages
        from_host = range(admission.device_pages, admission.device_pages + loaded)
        store = len(range(max(from_host.start, fetched.start), min(from_host.stop, fetched.stop))) * page
        host = loaded * page - store
        computed = prompt - device - host - store
        misses = {str(reason): pages * page for reason, pages in Counter(admission.misses).items()}
        tail = computed - sum(misses.values())
        if tail:
            misses[str(Miss.PAGE_TAIL)] = tail
        return Usage(prompt=prompt, device=device, host=host, store=store, computed=computed, misses=misses)
