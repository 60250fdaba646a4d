"""What changed in where pages are, told to whoever keeps a copy of the page tree's index: the router.

The page tree notes every change here; the engine drains the log after each step and sends what it finds on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stratakv.storage.tiers import Component, PageKey


@dataclass(frozen=True, slots=True)
class Changes:
    """How the two prefix-closed sets of a replica differ from what they were at the last drain. False when they do
    not."""

    device_added: tuple[PageKey, ...] = ()
    device_removed: tuple[PageKey, ...] = ()
    held_added: tuple[PageKey, ...] = ()
    held_removed: tuple[PageKey, ...] = ()
    side_added: Mapping[Component, tuple[PageKey, ...]] = field(default_factory=dict)
    """Pages whose side came to this replica, by component."""
    side_removed: Mapping[Component, tuple[PageKey, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        full = self.device_added or self.device_removed or self.held_added or self.held_removed
        return bool(full or self.side_added or self.side_removed)


@dataclass(frozen=True, slots=True)
class Holdings:
    """All sets as they are: pages on the device, pages held (device or host), and of each side the pages that have
    it."""

    device: Sequence[PageKey]
    held: Sequence[PageKey]
    side: Mapping[Component, Sequence[PageKey]] = field(default_factory=dict)


class ResidenceLog:
    """Changes since the last drain, net of what cancelled out. O(1) a change, memory for those that are left.

    Not thread-safe: tree, log and drain belong to one thread.
    """

    __slots__ = ("_device", "_held", "_sides")

    def __init__(self) -> None:
        self._device: dict[PageKey, bool] = {}
        self._held: dict[PageKey, bool] = {}
        self._sides: dict[Component, dict[PageKey, bool]] = {}

    def note_device(self, key: PageKey, present: bool) -> None:
        """The page came to the device (`present`) or left it."""
        _note(self._device, key, present)

    def note_held(self, key: PageKey, present: bool) -> None:
        """The page came to this replica, in whichever tier, or left it for good."""
        _note(self._held, key, present)

    def note_device_run(self, keys: Sequence[PageKey], present: bool) -> None:
        """Several pages came to the device or left it."""
        _note_run(self._device, keys, present)

    def note_held_run(self, keys: Sequence[PageKey], present: bool) -> None:
        """Several pages came to this replica or left it for good."""
        _note_run(self._held, keys, present)

    def note_side(self, component: Component, key: PageKey, present: bool) -> None:
        """The side of a page came to this replica, in whichever tier, or left it for good."""
        _note(self._sides.setdefault(component, {}), key, present)

    def clear(self) -> None:
        """Start anew without a look at the changes: nobody listens."""
        self._device, self._held, self._sides = {}, {}, {}

    def drain(self) -> Changes:
        """What is left of the changes, and start anew. Call it between two operations of the tree, where both sets
        are prefix-closed."""
        if not (self._device or self._held or self._sides):
            return _NONE
        device, self._device = self._device, {}
        held, self._held = self._held, {}
        sides, self._sides = self._sides, {}
        return Changes(
            device_added=_which(device, True),
            device_removed=_which(device, False),
            held_added=_which(held, True),
            held_removed=_which(held, False),
            side_added={c: keys for c, changes in sides.items() if (keys := _which(changes, True))},
            side_removed={c: keys for c, changes in sides.items() if (keys := _which(changes, False))},
        )


_NONE = Changes()


def _which(changes: dict[PageKey, bool], present: bool) -> tuple[PageKey, ...]:
    return tuple([key for key, here in changes.items() if here is present])


def _note(changes: dict[PageKey, bool], key: PageKey, present: bool) -> None:
    _note_run(changes, (key,), present)


def _note_run(changes: dict[PageKey, bool], keys: Sequence[PageKey], present: bool) -> None:
    if changes.keys().isdisjoint(keys):
        changes.update(dict.fromkeys(keys, present))
        return
    for key in keys:
        if changes.setdefault(key, present) is not present:
            del changes[key]  # it is back where it was at the last drain
