"""All sides of a replica together: what running requests hold of them, where they are saved, and how they follow the
pages of the tree when those leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stratakv.storage.checkpoints import Checkpoints, StateLease
from stratakv.storage.side import Side
from stratakv.storage.side_copies import SideCopies
from stratakv.storage.tiers import Tier
from stratakv.storage.tree import Tree
from stratakv.storage.windows import WindowLease, Windows


@dataclass(slots=True)
class SideLease:
    """What a request holds beside its pages: its window, its state, or both; None for a side the model has not."""

    window: WindowLease | None = None
    state: StateLease | None = None


class Place(NamedTuple):
    """Where a step of a request finds its sides: slots of the sliding pool for its last pages, and its working slot in
    the recurrent pool, -1 without one."""

    window: tuple[int, ...] = ()
    state: int = -1


class Sides:
    """The windows and checkpoints of a replica, either of which a model may lack."""

    def __init__(self, tree: Tree, windows: Windows | None = None, checkpoints: Checkpoints | None = None):
        self.windows = windows
        self.checkpoints = checkpoints
        kinds = (windows, checkpoints)
        self.moves: list[SideCopies] = [kind.moves for kind in kinds if kind is not None]
        self.all: list[Side] = [moves.side for moves in self.moves]
        self._tree = tree
        if self.all:
            tree.on_leave.append(self._page_left)
            tree.on_delete.append(self._page_gone)

    def fits(self, path: Sequence[int]) -> bool:
        """Whether a request that goes on after `path` can have its sides now."""
        if self.windows is not None and not self.windows.fits(path):
            return False
        return self.checkpoints is None or self.checkpoints.fits()

    def open(self, path: Sequence[int]) -> SideLease:
        """The sides of a request that goes on after `path`. The caller has asked `fits`."""
        return SideLease(
            self.windows.open(path) if self.windows is not None else None,
            self.checkpoints.open(path) if self.checkpoints is not None else None,
        )

    def prepare(self, lease: SideLease, start: int, end: int, settled: bool) -> Place | None:
        """Where a step that computes in pages `start` to `end - 1` finds its sides; None when there is no room now."""
        window: tuple[int, ...] | None = ()
        if self.windows is not None and lease.window is not None:
            window = self.windows.prepare(lease.window, start, end, settled)
        if window is None:
            return None
        return Place(window, lease.state.state if lease.state is not None else -1)

    def passed(self, lease: SideLease, count: int, marked: bool) -> None:
        """The computation stands exactly after `count` pages."""
        if self.checkpoints is not None and lease.state is not None:
            self.checkpoints.snapshot(lease.state, count, marked)

    def entered(self, lease: SideLease, count: int, page: int, marked: bool) -> list[int]:
        """Page number `count` (from 1) of the history is in the tree as `page`. Returns the pages of which something
        new is worth saving."""
        fresh: list[int] = []
        if marked and self.windows is not None and lease.window is not None:
            fresh += self.windows.mark(lease.window, count, page)
        if self.checkpoints is not None and lease.state is not None:
            new = self.checkpoints.enter(lease.state, count, page)
            fresh += [page] if new and page not in fresh else []
        return fresh

    def close(self, lease: SideLease, committed: int, tip: int) -> list[int]:
        """The request is done, with `committed` pages in the tree down to `tip`, where its history may be taken up.
        Returns the pages of which something new is worth saving."""
        fresh: list[int] = []
        if self.windows is not None and lease.window is not None:
            if committed:
                fresh += self.windows.mark(lease.window, committed, tip)
            self.windows.close(lease.window)
        if self.checkpoints is not None and lease.state is not None:
            page = self.checkpoints.close(lease.state, committed, tip)
            fresh += [page] if page is not None and page not in fresh else []
        return fresh

    def back_up(self, pages: Sequence[int]) -> None:
        """Save whatever sides of `pages`, in the order of a path, are on the device and not on host yet."""
        for moves in self.moves:
            moves.back_up(pages)

    def run_ahead(self) -> None:
        """See to it that a few device slots of each side can be had without losing anything."""
        for moves in self.moves:
            moves.back_up_coldest(moves.side.device.book.capacity // 8 + 1)

    def _page_left(self, page: int, tier: Tier) -> None:
        if tier is Tier.DEVICE:
            for side in self.all:
                side.leave(page, Tier.DEVICE)

    def _page_gone(self, page: int) -> None:
        for side in self.all:
            side.forget(page)
