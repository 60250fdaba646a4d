"""Our own Ray head: started with ports, folder, token and session of its own, so that clusters never meet.

Ray runs only in processes that are given their whole environment here. Ray reads its auth mode when it is
imported and would otherwise write a token into the user's home.
"""

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from stratakv.deploy import ports, records
from stratakv.deploy.processes import MARK, end_all
from stratakv.deploy.records import ClusterRecord, RayOwner
from stratakv.deploy.settings import RaySettings

_START_DEADLINE = 120.0
_DASHBOARD_PORT = 8265
_PORT_FLAGS = (
    "--port",
    "--node-manager-port",
    "--object-manager-port",
    "--runtime-env-agent-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--ray-client-server-port",
    "--metrics-export-port",
)


class RayError(Exception):
    """Ray could not be started or reached; says why and what to do."""


def new_record(settings: RaySettings, host_directory: Path, model: str) -> ClusterRecord:
    """A new cluster's record, written, and its folder, made. `address` is that of a running Ray, or still empty."""
    id = secrets.token_hex(4)
    directory = settings.temp_dir / f"skv-{id}"
    directory.mkdir(mode=0o700)
    record = ClusterRecord(
        id=id,
        ray=RayOwner.THEIRS if settings.address else RayOwner.OURS,
        address=settings.address or "",
        auth=settings.auth,
        directory=str(directory.resolve()),
        host_directory=str(host_directory / f"stratakv-{id}"),
        model=model,
    )
    records.write(record)
    return record


def environment(record: ClusterRecord) -> dict[str, str]:
    """The environment of every process of a cluster that has to do with Ray."""
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    ours = {
        MARK: record.id,
        "RAY_AUTH_MODE": record.auth,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
    }
    if record.ray is RayOwner.OURS:
        inherited.pop("RAY_AUTH_TOKEN", None)
        ours["RAY_AUTH_TOKEN_PATH"] = str(record.token_file)
        # What Ray's processes leave in the temporary folder goes with the cluster's own.
        temporary = Path(record.directory) / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        ours["TMPDIR"] = str(temporary)
    return inherited | ours


def start_head(record: ClusterRecord, settings: RaySettings, gpus: int | None) -> ClusterRecord:
    """Start our own Ray head; `gpus` is how many it may use, None for all. The record with its address and session.

    RayError if it does not come up at the second try either; the processes of that may still have to be ended.
    """
    write_token(record)
    try:
        return _start_once(record, settings, gpus)
    except RayError:
        # Ray gives its own parts 30 s, too little on a machine that is very busy; or a port was taken from under us.
        end_all(records.latest(record))
        shutil.rmtree(Path(record.directory) / "ray", ignore_errors=True)
        return _start_once(record, settings, gpus)


def _start_once(record: ClusterRecord, settings: RaySettings, gpus: int | None) -> ClusterRecord:
    dashboard = settings.dashboard_port or _dashboard_port()
    chosen = ports.free_ports(len(_PORT_FLAGS))
    directory = Path(record.directory)
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--disable-usage-stats"]
    command += ["--log-style=record", "--log-color=false"]
    command += [f"{flag}={port}" for flag, port in zip(_PORT_FLAGS, chosen, strict=True)]
    # Workers take the ports that the system chooses: Ray's own range would be shared with other clusters.
    command += ["--min-worker-port=0", "--max-worker-port=0"]
    command += [f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"]
    command += [f"--temp-dir={directory / 'ray'}", f"--object-store-memory={settings.object_store_memory}"]
    command += [f"--num-cpus={os.cpu_count()}"] + ([] if gpus is None else [f"--num-gpus={gpus}"])
    log = directory / "ray-start.log"
    with log.open("wb") as output:
        head = subprocess.Popen(
            command,
            env=environment(record),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    record = msgspec.structs.replace(
        record,
        address=f"127.0.0.1:{chosen[0]}",
        session=head.pid,
        dashboard_url=f"http://127.0.0.1:{dashboard}",
    )
    records.write(record)
    try:
        status = head.wait(_START_DEADLINE)
    except subprocess.TimeoutExpired:
        raise RayError(f"Ray did not start within {_START_DEADLINE:g} s: {_last_line(log)}") from None
    if status:
        raise RayError(f"Ray could not start (`ray start` ended with {status}): {_last_line(log)}")
    return record


def write_token(record: ClusterRecord) -> None:
    """A new token for our own Ray, readable by its owner alone."""
    descriptor = os.open(record.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))


def _dashboard_port() -> int:
    return _DASHBOARD_PORT if ports.is_free("127.0.0.1", _DASHBOARD_PORT) else ports.free_ports(1)[0]


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it says nothing"
