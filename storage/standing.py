"""Who may leave: what the columns of the page tree say of each page now, kept up to date change by change.

Used by the tree alone. A page is a member of one queue at most; a page with children in its tier is in none.
"""

from collections.abc import Callable, Sequence

from stratakv.storage.columns import NONE, ROOT, Columns
from stratakv.storage.queue import LeavingQueue
from stratakv.storage.tiers import Component, Tier


class Standing:
    """Counts and queues of the pages that can leave. `rank` is the eviction policy's word on a page."""

    def __init__(self, columns: Columns, rank: Callable[[int], float]):
        self.freeable = 0
        """Device pages that can leave at once, leaf by leaf: unguarded, and saved to host with all below them."""
        self.stuck = 0
        """Device pages that are unguarded but not freeable: they, or pages below them, have no host copy yet."""
        self.clean_leaves = LeavingQueue(rank)
        """Device leaves that can leave the device now."""
        self.unsaved_leaves = LeavingQueue(rank)
        """Device leaves that must be copied to host (or be dropped) before they leave."""
        self.host_leaves = LeavingQueue(rank)
        """Pages on host only, with nothing held below them."""
        self._columns = columns
        full = columns.slots[Component.FULL]
        self._device, self._host = full[Tier.DEVICE], full[Tier.HOST]
        self._queue_of: dict[int, LeavingQueue] = {}

    def guard(self, page: int, by: int) -> None:
        """Add `by` (1 or -1) to the guards of `page`, and of each ancestor whose child turned to or from guarded. The
        root is always guarded."""
        columns, device, children = self._columns, self._device, self._columns.device_children
        guards, unsaved, parent, held = columns.guard, columns.unsaved, columns.parent, columns.held_children
        freeable = stuck = 0
        while True:
            before = guards[page]
            guards[page] = before + by
            if before and before + by:
                break
            if device[page] == NONE:
                below = held
            else:
                below = children
                if unsaved[page]:
                    stuck -= by
                else:
                    freeable -= by
            if not below[page]:
                self.settle(page)
            page = parent[page]
        self.freeable += freeable
        self.stuck += stuck

    def mark_unsaved(self, page: int, by: int) -> None:
        """Add `by` (1 or -1) to what is unsaved at `page`, and at each ancestor whose child turned to or from saved."""
        columns, device, children = self._columns, self._device, self._columns.device_children
        guards, unsaved, parent = columns.guard, columns.unsaved, columns.parent
        turned = 0
        while True:
            before = unsaved[page]
            unsaved[page] = before + by
            if before and before + by:
                break
            if not guards[page] and device[page] != NONE:
                turned += by
            if page == ROOT:
                break
            if not children[page]:
                self.settle(page)
            page = parent[page]
        self.stuck += turned
        self.freeable -= turned

    def count(self, page: int, by: int) -> None:
        """Count `page` in or out as what its columns make it now: freeable, stuck or neither."""
        if self._device[page] == NONE or self._columns.guard[page]:
            return
        if self._columns.unsaved[page]:
            self.stuck += by
        else:
            self.freeable += by

    def settle(self, page: int) -> None:
        """Put `page` into the queue where the columns say it belongs, and out of any other."""
        columns, belongs = self._columns, None
        if not columns.guard[page]:
            if self._device[page] != NONE:
                if not columns.device_children[page]:
                    belongs = self.unsaved_leaves if columns.unsaved[page] else self.clean_leaves
            elif self._host[page] != NONE and not columns.held_children[page] and not columns.keep[page]:
                belongs = self.host_leaves
        present = self._queue_of.get(page)
        if present is belongs:
            return
        if present is not None:
            present.set(page, False)
            del self._queue_of[page]
        if belongs is not None:
            belongs.set(page, True)
            self._queue_of[page] = belongs

    def arrived(self, pages: Sequence[int], has_host: bool) -> None:
        """`pages`, a stretch of one path, came to the device: none of them has another child there."""
        columns, unsaved_below = self._columns, 0
        guards, unsaved = columns.guard, columns.unsaved
        for page in reversed(pages):
            own = has_host and self._host[page] == NONE
            unsaved[page] = own + unsaved_below
            unsaved_below = 1 if unsaved[page] else 0
            if not guards[page]:
                if unsaved_below:
                    self.stuck += 1
                else:
                    self.freeable += 1
        above = columns.parent[pages[0]]
        if unsaved_below:
            self.mark_unsaved(above, 1)
        self.settle(above)

    def saved(self, pages: Sequence[int]) -> None:
        """`pages`, device pages in the order of one path, have a host copy now."""
        columns = self._columns
        guards, unsaved, parent = columns.guard, columns.unsaved, columns.parent
        waiting = NONE  # a page that has one unsaved child less, not taken off yet
        for page in reversed(pages):
            if waiting not in (NONE, page):
                self.mark_unsaved(waiting, -1)
            unsaved[page] -= 2 if waiting == page else 1
            waiting = NONE
            if not unsaved[page]:
                waiting = parent[page]
                if not guards[page]:
                    self.stuck -= 1
                    self.freeable += 1
                if not columns.device_children[page]:
                    self.settle(page)
        if waiting != NONE:
            self.mark_unsaved(waiting, -1)
