"""What is written down of each cluster, so that `status` and `down` find it again: one small file per cluster."""

import os
from enum import StrEnum
from pathlib import Path

import msgspec


class RayOwner(StrEnum):
    """Whose Ray a cluster runs on. Only our own is ended by `down`."""

    OURS = "ours"
    THEIRS = "theirs"


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster. Written before anything is started, so that whatever is interrupted can be cleaned up."""

    id: str
    ray: RayOwner
    address: str
    """host:port of Ray's GCS"""
    auth: str
    """`token` or `disabled`"""
    directory: str
    """the cluster's own folder: token, logs, Ray's sockets"""
    host_directory: str
    """the folder of its host slabs"""
    session: int | None = None
    """Unix session of all processes of our own Ray; None before it is started, or if it is not ours"""
    dashboard_url: str | None = None
    url: str | None = None
    """where clients come, once the gateway listens"""
    model: str = ""

    @property
    def namespace(self) -> str:
        """Ray namespace of its actors."""
        return f"stratakv-{self.id}"

    @property
    def token_file(self) -> Path:
        """The token of our own Ray."""
        return Path(self.directory) / "token"


class RecordError(Exception):
    """No cluster, or no telling which."""


def write(record: ClusterRecord) -> None:
    """Write a record, readable by its owner alone, in place of an older one."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = folder / f".{record.id}.{os.getpid()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(record)))
    draft.replace(_path(record.id))


def remove(id: str) -> None:
    """Forget a cluster."""
    _path(id).unlink(missing_ok=True)


def read_all() -> list[ClusterRecord]:
    """All clusters of this user, oldest first."""
    paths = sorted(_folder().glob("*.json"), key=lambda path: path.stat().st_mtime)
    return [msgspec.json.decode(path.read_bytes(), type=ClusterRecord) for path in paths]


def exists(id: str) -> bool:
    """Whether a cluster is still written down."""
    return _path(id).exists()


def latest(record: ClusterRecord) -> ClusterRecord:
    """What is written down of the same cluster now; `record` itself if that is nothing."""
    return next((written for written in read_all() if written.id == record.id), record)


def choose(id: str | None) -> ClusterRecord:
    """The cluster `id`, or the only one there is. RecordError if that is not one."""
    records = read_all()
    found = [record for record in records if id in (None, record.id)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(record.id for record in records)
    if not records:
        raise RecordError("no cluster of this user is running; `stratakv serve` starts one")
    if not found:
        raise RecordError(f"there is no cluster {id!r}; there is {known}")
    raise RecordError(f"there are several clusters; say which: {known}")


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "stratakv" / "clusters"


def _path(id: str) -> Path:
    return _folder() / f"{id}.json"
