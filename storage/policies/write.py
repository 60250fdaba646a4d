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


@WRITE_POLICIES.register("write_through_selective")
class WriteThroughSelective:
    """Copies a page once a second request has used it.

    Use it when most prompts never come back and the host link, or the store behind it, is what is short: pages that
    were asked for once cost nothing, unless the device runs out of room for them. The first reuse of a page must be
    served by the device.
    """

    def wants_backup(self, hits: int) -> bool:
        """From the second hit on."""
        return hits >= 2


@WRITE_POLICIES.register("write_back")
class WriteBack:
    """Copies no page because it was used: the hierarchy copies those that are about to leave the device.

    Use it when the device holds nearly all that is asked for again, and copies would only compete with the model for
    memory bandwidth. What was not copied yet is lost with its worker, and reaches the store late: no policy for
    replicas that share their pages.
    """

    def wants_backup(self, hits: int) -> bool:
        """Never."""
        return False
