"""Copies of sides from the device to the host: of each component and page by itself, so that what is new on an old page
is saved like anything else."""

from collections.abc import Callable, Sequence
from functools import partial

from stratakv.storage.copies import Copies, Operation
from stratakv.storage.holds import HoldKind
from stratakv.storage.moves import Direction
from stratakv.storage.pools import Owner
from stratakv.storage.side import Side
from stratakv.storage.stamps import stamps
from stratakv.storage.tiers import Tier
from stratakv.storage.tree import Tree


class SideCopies:
    """Backups of one side. `on_saved(side, pages)` is told which have a host copy now; `backed_up` and `loaded` count
    pages since the start."""

    def __init__(
        self, tree: Tree, side: Side, copies: Copies, on_saved: Callable[[Side, Sequence[int]], None]
    ):
        self.side = side
        self.backed_up = 0
        self.loaded = 0
        self._tree = tree
        self._copies = copies
        self._on_saved = on_saved

    def back_up(self, pages: Sequence[int]) -> None:
        """Order the sides of `pages`, a stretch of one path in order, to host as far as they are on the device, not
        saved yet, and there is room. Those nearest to the end go first."""
        side = self.side
        wanted = [page for page in pages if self._unsaved(page)]
        for page in wanted:
            side.guard(page, Tier.DEVICE)
        targets = side.take(Tier.HOST, len(wanted), Owner.FLIGHT)
        chosen = wanted[len(wanted) - len(targets) :]
        for page in wanted[: len(wanted) - len(targets)]:
            side.unguard(page, Tier.DEVICE)
        if not chosen:
            return
        side.saving.update(chosen)
        hold = self._tree.hold(chosen[-1], HoldKind.DEVICE)
        finish = partial(self._end, chosen, targets)
        sources = [place for page in chosen for place in side.device.book.places(side.device.slots[page])]
        operation = Operation(Direction.BACKUP, side.component, targets, hold, finish)
        self._copies.order(operation, sources, targets, stamps(self._tree, chosen))

    def back_up_coldest(self, target: int) -> None:
        """See to it that `target` device slots can be had without losing the only copy of a side, as far as the host
        has room beside copies of what is on the device: to make room with one of those would only pass the need on."""
        side = self.side
        short = target - side.device.book.free - len(side.device.first) - len(side.saving)
        room = side.host.book.free + len(side.host.first)
        while short > 0 and room > 0 and (page := side.device.last.coldest()) is not None:
            self.back_up([page])
            if page not in side.saving:
                return
            short -= 1
            room -= 1

    def _unsaved(self, page: int) -> bool:
        side = self.side
        return page in side.device.slots and page not in side.host.slots and page not in side.saving

    def _end(self, pages: Sequence[int], targets: Sequence[int]) -> None:
        side = self.side
        side.host.book.move(targets, Owner.FLIGHT, Owner.TREE)
        side.saving.difference_update(pages)
        for page, slot in zip(pages, targets, strict=True):
            side.place(page, Tier.HOST, slot, side.uses[page])
            side.unguard(page, Tier.DEVICE)
        self.backed_up += len(pages)
        self._on_saved(side, pages)
