"""What changed in where pages are, told to whoever keeps a copy of the page tree's index: the router.

The page tree notes every change here; the engine drains the log after each step and sends what it finds on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stratakv.storage.tiers import PageKey


@dataclass(frozen=True, slots=True)
class Changes:
    """How the two prefix-closed sets of a replica differ from what they were at the last drain. False when they do
    not."""

    device_added: tuple[PageKey, ...] = ()
    device_removed: tuple[PageKey, ...] = ()
    held_added: tuple[PageKey, ...] = ()
    held_removed: tuple[PageKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.device_added or self.device_removed or self.held_added or self.held_removed)


@dataclass(frozen=True, slots=True)
class Holdings:
    """Both sets as they are: pages on the device, and pages held (device or host)."""

    device: Sequence[PageKey]
    held: Sequence[PageKey]


class ResidenceLog:
    """Changes since the last drain, net of what cancelled out. O(1) a change, memory for those that are left.

    Not thread-safe: tree, log and drain belong to one thread.
    """

    __slots__ = ("_device", "_held")

    def __init__(self) -> None:
        self._device: dict[PageKey, bool] = {}
        self._held: dict[PageKey, bool] = {}

    def note_device(self, key: PageKey, present: bool) -> None:
        """The page came to the device (`present`) or left it."""
        _note(self._device, key, present)

    def note_held(self, key: PageKey, present: bool) -> None:
        """The page came to this replica, in whichever tier, or left it for good."""
        _note(self._held, key, present)

    def drain(self) -> Changes:
        """What is left of the changes, and start anew. Call it between two operations of the tree, where both sets
        are prefix-closed."""
        if not self._device and not self._held:
            return _NONE
        device, self._device = self._device, {}
        held, self._held = self._held, {}
        return Changes(
            device_added=tuple(key for key, present in device.items() if present),
            device_removed=tuple(key for key, present in device.items() if not present),
            held_added=tuple(key for key, present in held.items() if present),
            held_removed=tuple(key for key, present in held.items() if not present),
        )


_NONE = Changes()


def _note(changes: dict[PageKey, bool], key: PageKey, present: bool) -> None:
    if changes.setdefault(key, present) is not present:
        del changes[key]  # it is back where it was at the last drain
