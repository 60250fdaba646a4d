"""The directory of a file store: what lies where, how a file comes to its name, and whether the directory will do.

    <root>/<identity>/identity.json
    <root>/<identity>/<component>/<group>/<first two digits of the key>/<key>
    <root>/<identity>/{tmp,nonces,grants,quarantine}/

Nothing outside folders that are named as an identity is ever touched: the directory may hold other things.
"""

import errno
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stratakv.storage.identity import Identity
from stratakv.storage.layout import Group
from stratakv.storage.settings import format_size
from stratakv.storage.stores.answers import ForeignPages, Shelf
from stratakv.storage.stores.errors import StoreFull, StoreUnusable, StoreUrlError
from stratakv.storage.tiers import Component, PageKey

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})

_COMPONENTS = frozenset(Component)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FAN_OUT = re.compile(r"[0-9a-f]{2}")
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def root_of(url: str) -> Path:
    """The directory that a `file:` URL names. StoreUrlError."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or parts.query or parts.fragment:
        raise StoreUrlError(f"store.url is {url}; write it as file:///absolute/directory")
    return Path(path)


class Folder:
    """The part of the directory `root` that belongs to `identity`."""

    def __init__(self, root: Path, identity: Identity):
        self.root = root
        self.identity = identity
        self.digest = bytes.fromhex(identity.digest())
        self.home = f"{root}/{identity.digest()}"
        self._writer = f"{socket.gethostname()}.{os.getpid()}.{os.urandom(4).hex()}"
        self._numbers = count()

    def prepare(self, page_bytes: int) -> None:
        """Make the directory, prove that it can be written and has room for a page, leave identity.json there.

        StoreUnusable or StoreFull.
        """
        if self.root.exists() and not self.root.is_dir():
            raise StoreUnusable(f"store.url: {self.root} is a file; name a directory")
        try:
            for name in ("tmp", "nonces", "grants", "quarantine"):
                os.makedirs(f"{self.home}/{name}", exist_ok=True)
            free = free_bytes(self.root)
            if free < page_bytes:
                raise _full(self.root, f"{format_size(free)} free, and one page takes {page_bytes} bytes")
            self._describe()
        except OSError as error:
            if error.errno in FULL_DISK:
                raise _full(self.root, "no room for a file") from error
            raise StoreUnusable(
                f"store.url: {self.root} cannot be read and written: {error}; name a directory that this user may write"
            ) from error

    def block(self, shelf: Shelf, key: PageKey) -> str:
        """The path of a block."""
        name = key.hex()
        return f"{self.home}/{shelf}/{name[:2]}/{name}"

    def quarantined(self, shelf: Shelf, key: PageKey) -> str:
        """Where a block that is not what it should be is kept for inspection."""
        return f"{self.home}/quarantine/{shelf.component}-{shelf.group}-{key.hex()}"

    def temporary(self) -> str:
        """A path that nobody else uses, in the same file system as the blocks."""
        return f"{self.home}/tmp/{self._writer}.{next(self._numbers)}"

    def nonce(self, nonce: str) -> str:
        """The path of a mark. ValueError unless it is hex digits."""
        return f"{self.home}/nonces/{bytes.fromhex(nonce).hex()}"

    def grant(self) -> str:
        """Where this process says how much it may still write. Another path at every call."""
        return f"{self.home}/grants/{self._writer}.{next(self._numbers)}"

    def foreign(self) -> list[ForeignPages]:
        """The other identities that have pages here."""
        found = []
        for home in homes(self.root):
            pages = max((_count_blocks(path) for path, _ in shelves(home)), default=0)
            if home != self.home and pages:
                found.append(ForeignPages(os.path.basename(home), _read(f"{home}/identity.json"), pages))
        return found

    def _describe(self) -> None:
        """Write identity.json, always: it also shows that files can be written here."""
        temporary = self.temporary()
        try:
            with open(temporary, "x") as file:
                file.write(self.identity.to_json())
            os.replace(temporary, f"{self.home}/identity.json")
        finally:
            with suppress(OSError):
                os.unlink(temporary)


def place(temporary: str, path: str) -> bool:
    """Give the finished file `temporary` the name `path`, at once and for all to see. False if the name is taken.

    Makes the folder when it is the first there. OSError.
    """
    try:
        return _link(temporary, path)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return _link(temporary, path)


def free_bytes(root: Path) -> int:
    """What this user may still write to the file system of `root`."""
    stats = os.statvfs(root)
    return stats.f_bavail * stats.f_frsize


def homes(root: Path) -> Iterator[str]:
    """The folders of all identities."""
    return (entry.path for entry in entries(str(root)) if _DIGEST.fullmatch(entry.name))


def shelves(home: str) -> Iterator[tuple[str, Shelf]]:
    """The shelves in the folder of an identity, with their paths."""
    for component in entries(home):
        for group in entries(component.path) if component.name in _COMPONENTS else ():
            with suppress(ValueError):
                yield group.path, Shelf(Component(component.name), Group.parse(group.name))


def fan_out(shelf: str) -> Iterator[str]:
    """The folders of a shelf that have blocks in them."""
    return (entry.path for entry in entries(shelf) if _FAN_OUT.fullmatch(entry.name))


def blocks(folder: str) -> Iterator["os.DirEntry[str]"]:
    """The blocks in one folder of the fan-out."""
    return (entry for entry in entries(folder) if _DIGEST.fullmatch(entry.name))


def entries(folder: str) -> Iterator["os.DirEntry[str]"]:
    """What is in `folder`, nothing if it is gone."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as found:
        yield from found


def _link(temporary: str, path: str) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.exists(path):  # this file system has no links; a race replaces a page by the same bytes
            return False
        os.rename(temporary, path)
    return True


def _count_blocks(shelf: str) -> int:
    return sum(1 for folder in fan_out(shelf) for _ in blocks(folder))


def _read(path: str) -> bytes | None:
    with suppress(OSError), open(path, "rb") as file:
        return file.read()
    return None


def _full(root: Path, found: str) -> StoreFull:
    return StoreFull(f"store.url: {root} is full: {found}; make room there or name another directory")
