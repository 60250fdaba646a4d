"""What can be found wrong before anything is started: seconds here save a start that ends in a stack trace."""

import json
import os
import re
import socket
import urllib.parse
from pathlib import Path

from stratakv.actors.worker.split import split_of
from stratakv.deploy import ports
from stratakv.deploy.settings import StrataSettings
from stratakv.storage.settings import format_size
from stratakv.storage.stores.errors import StoreError
from stratakv.storage.stores.folder import root_of
from stratakv.storage.stores.opening import find_opener

_PROBE_DEADLINE = 5.0
_SOCKET_PATH_LIMIT = 107
_SOCKET_PATH_REST = len("/skv-00000000/ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


class PreflightError(Exception):
    """The cluster would not start; names the setting and the remedy."""


def check(settings: StrataSettings) -> None:
    """Raise PreflightError for the first thing that would stop `settings` from being served on this machine."""
    check_listen(settings)
    check_model(settings.model.path)
    check_ranks(settings)
    check_device(settings)
    check_memory(settings)
    check_store(settings.store.url)
    check_ray(settings)


def check_listen(settings: StrataSettings) -> None:
    """Host and port can be listened on."""
    host, port = settings.api.host, settings.api.port
    try:
        free = ports.is_free(host, port)
    except OSError as error:
        raise PreflightError(
            f"api.host: {host!r} is not an address of this machine ({error.strerror or error}); "
            "use 127.0.0.1, or 0.0.0.0 for all interfaces"
        ) from None
    if not free:
        raise PreflightError(f"api.port: port {port} of {host} is in use; choose another with --port")


def check_model(path: str) -> None:
    """The model is a directory with the config of a causal LM, or a hub name that is cached or can be reached."""
    directory = Path(path).expanduser()
    if directory.is_dir():
        check_config(path, directory / "config.json")
    elif directory.exists():
        raise PreflightError(f"model.path: {path} is a file; give the Hugging Face directory it is in")
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not path.startswith("."):
        _check_hub_name(path)
    else:
        raise PreflightError(
            f"model.path: there is no {path}; give a Hugging Face directory, a hub name such as org/model, smollm2 or "
            "gemma3"
        )


def check_config(path: str, config: Path) -> None:
    """`config` is a Hugging Face config and does not say that the model is something else than a causal LM."""
    try:
        values = json.loads(config.read_text())
    except FileNotFoundError:
        raise PreflightError(
            f"model.path: {path} has no config.json; give a Hugging Face model directory"
        ) from None
    except (OSError, ValueError) as error:
        raise PreflightError(f"model.path: {config} cannot be read: {error}") from None
    named = values.get("architectures") if isinstance(values, dict) else None
    if named and not any(str(name).endswith(_CAUSAL) for name in named):
        raise PreflightError(
            f"model.path: {path} is a {', '.join(map(str, named))}, not a causal language model; "
            "give a model whose architecture ends in ForCausalLM"
        )


def check_ranks(settings: StrataSettings) -> None:
    """The model's heads can be split over the ranks and the stored shares, as far as a local config.json says."""
    config = Path(settings.model.path).expanduser() / "config.json"
    if not config.is_file():
        return
    try:
        split = split_of(json.loads(config.read_text()), settings.tensor_parallel)
        if split is not None and settings.store.url is not None:
            split.stored_groups(0, settings.store.head_groups)
    except ValueError as error:
        raise PreflightError(f"model.path: {settings.model.path}: {error}") from None


def _check_hub_name(name: str) -> None:
    # Imported late: it is slow, and few need it.
    from huggingface_hub import constants, try_to_load_from_cache

    cached = try_to_load_from_cache(name, "config.json")
    if isinstance(cached, str):
        check_config(name, Path(cached))
        return
    hub = urllib.parse.urlsplit(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE or not ports.answers(hub.hostname or "", hub.port or 443, _PROBE_DEADLINE):
        raise PreflightError(
            f"model.path: there is no directory {name}, and as a hub name it is not in the cache and {hub.netloc} "
            "cannot be reached; give a local directory"
        )


def check_device(settings: StrataSettings) -> None:
    """There is a GPU if one is demanded."""
    if settings.model.device == "cuda" and not has_gpu() and settings.ray.address is None:
        raise PreflightError("model.device: cuda, but this machine has no NVIDIA GPU; use cpu or auto")


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU with its driver."""
    return Path("/dev/nvidiactl").exists()


def check_memory(settings: StrataSettings) -> None:
    """The tiers fit the machine's memory and the tmpfs of the host slabs."""
    cache, ranks = settings.cache, settings.replicas * settings.tensor_parallel
    directory = cache.host_directory
    fewer = f" (each of {ranks} ranks takes its own), use fewer --replicas" if ranks > 1 else ""
    if not directory.is_dir() or not os.access(directory, os.W_OK):
        raise PreflightError(
            f"cache.host_directory: {directory} is not a folder that can be written; use /dev/shm"
        )
    slabs, room = cache.host_memory * ranks, os.statvfs(directory)
    free = room.f_bavail * room.f_frsize - settings.ray.object_store_memory
    if slabs > free:
        raise PreflightError(
            f"cache.host_memory: {format_size(slabs)} of host slabs do not fit {directory}, which has "
            f"{format_size(max(0, free))} free; lower --host-memory{fewer} or make {directory} larger"
        )
    on_cpu = settings.model.device == "cpu" or (settings.model.device == "auto" and not has_gpu())
    pools, available = cache.device_memory * ranks if on_cpu else 0, available_memory()
    if pools + slabs > available:
        raise PreflightError(
            f"cache.device_memory and cache.host_memory: {format_size(pools)} and {format_size(slabs)} are more "
            f"than the {format_size(available)} of memory that are available; lower --device-memory or "
            f"--host-memory{fewer}"
        )


def check_store(url: str | None) -> None:
    """The store's URL is one that can be opened; if it is a directory, it can be made and written."""
    if url is None:
        return
    try:
        find_opener(url)
        root = root_of(url) if url.startswith("file:") else None
    except StoreError as error:
        raise PreflightError(str(error)) from None
    if root is None:
        return
    nearest = next(folder for folder in (root, *root.parents) if folder.exists())
    if not nearest.is_dir():
        raise PreflightError(f"store.url: {nearest} is a file; name a directory")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PreflightError(
            f"store.url: {nearest} cannot be written by this user; choose another directory with --store"
        )


def available_memory() -> int:
    """Bytes that may still be used: what the kernel calls available, within the limit of our control group."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except OSError:
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - used))


def check_ray(settings: StrataSettings) -> None:
    """A running Ray answers where it should; for our own, its folder and dashboard port can be had."""
    ray = settings.ray
    if ray.address is not None:
        running_ray(ray.address)
        return
    if ray.dashboard_port is not None and not ports.is_free("127.0.0.1", ray.dashboard_port):
        raise PreflightError(
            f"ray.dashboard_port: port {ray.dashboard_port} is in use; choose another with --dashboard-port"
        )
    longest = len(str(ray.temp_dir.resolve())) + _SOCKET_PATH_REST
    if longest > _SOCKET_PATH_LIMIT:
        raise PreflightError(
            f"ray.temp_dir: {ray.temp_dir} makes socket paths of {longest} characters, {_SOCKET_PATH_LIMIT} are "
            "allowed; use a shorter one, such as /tmp"
        )
    if not ray.temp_dir.is_dir() or not os.access(ray.temp_dir, os.W_OK):
        raise PreflightError(f"ray.temp_dir: {ray.temp_dir} is not a folder that can be written; use /tmp")


def running_ray(address: str) -> str:
    """host:port of the running Ray that `address` means. PreflightError if nobody answers there."""
    found = _auto_address() if address == "auto" else address
    host, _, port = found.rpartition(":")
    if not host or not port.isdigit():
        raise PreflightError(
            f"ray.address: {found!r} is neither `auto` nor host:port, such as 127.0.0.1:6379"
        )
    try:
        socket.getaddrinfo(host, int(port))
    except OSError:
        raise PreflightError(
            f"ray.address: the host {host!r} is unknown; give host:port of a running Ray"
        ) from None
    # A driver that is pointed at a port where nobody answers retries for ever.
    if not ports.answers(host, int(port), _PROBE_DEADLINE):
        raise PreflightError(
            f"ray.address: nobody answers at {found}; start Ray there, or leave --ray-address out for a Ray of our own"
        )
    return found


def _auto_address() -> str:
    """Where `ray start` on this machine has said that its cluster is."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address
    written = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
    try:
        return written.read_text().strip()
    except OSError:
        raise PreflightError(
            "ray.address: no Ray is running on this machine; start one with `ray start --head`, or leave "
            "--ray-address out for a Ray of our own"
        ) from None
