"""When a page on the device is copied to the host. Asked by the hierarchy when the hits of a page rise."""

from collections.abc import Callable
from typing import Protocol

from stratakv.storage.registry import Registry


class WritePolicy(Protocol):
    """Decides on backups; pure, so that the replay and the worker agree."""

    def wants_backup(self, hits: int) -> bool:
        """Whether a device page that `hits` distinct requests committed or reused should get a host copy."""


WRITE_POLICIES: Registry[Callable[[], WritePolicy]] = Registry("write policy", "cache.write_policy")


@WRITE_POLICIES.register("write_through")
class WriteThrough:
    """Copies every page as soon as it is committed.

    Use it when histories come back (chats, agents): a page can leave the device at once because its copy is
    there already, and a restarted worker finds it. Costs host bandwidth for pages that are never asked for
    again.
    """

    def wants_backup(self, hits: int) -> bool:
        """From the first hit on."""
        return hits >= 1
