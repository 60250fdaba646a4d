"""A cluster per configuration of the tiers, everything else equal: settings, start, and an end that leaves nothing."""

import shutil
import signal
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from stratakv.deploy.bench_workload import Workload
from stratakv.deploy.demo_settings import layer_shapes
from stratakv.deploy.down import take_down
from stratakv.deploy.launch import Stay, serve
from stratakv.deploy.narrate import Narrator
from stratakv.deploy.settings import StrataSettings
from stratakv.deploy.sources import SettingPath, load
from stratakv.storage.layout import BlockLayout

_HEARTBEAT_TIMEOUT = 30.0
_ROUTER_DEADLINE = 10.0
_ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Tiers(StrEnum):
    """Which tiers a configuration has."""

    DEVICE = "device"
    HOST = "device+host"
    STORE = "device+host+store"
    EVERYTHING = "all-in-device"
    """A device pool that holds everything, and no other tier: what no hierarchy can beat. The run's own ceiling."""


class PoolTooSmall(ValueError):
    """The pools asked for cannot serve the workload."""


@dataclass(frozen=True, slots=True)
class Pools:
    """Pages of the pools that overflow."""

    device: int
    host: int


def pools_for(workload: Workload, page_size: int, device_tokens: int | None, host_ratio: float) -> Pools:
    """Pools of `device_tokens` and `host_ratio` times as much. PoolTooSmall if the last request does not fit the
    device.

    By default the device holds a quarter of all conversations, but always the longest one and a page of slack for each
    request that runs.
    """
    least = -(-workload.longest // page_size) + workload.parallel
    wanted = workload.pages(page_size) // 4 if device_tokens is None else device_tokens // page_size
    device = max(least, wanted) if device_tokens is None else wanted
    if device < least:
        raise PoolTooSmall(
            f"--device-tokens {device_tokens} is {device} pages of {page_size}; the last request alone needs {least} "
            f"with a page for each request that runs: set it to {least * page_size} or more, or use fewer --rounds"
        )
    return Pools(device, int(device * host_ratio))


@dataclass(frozen=True, slots=True)
class Spawn:
    """How clusters are started: the model, pools that overflow, and the user's own settings file."""

    model: Path
    page_size: int
    pools: Pools
    prefetch_policy: str
    dtype: str
    device: str
    config: Path | None

    def settings(self, tiers: Tiers, workload: Workload, store: Path) -> StrataSettings:
        """Settings of one configuration. UnknownShape if the model does not say how large its KV is."""
        layout = BlockLayout(layer_shapes(self.model), self.page_size, _ITEM_SIZES[self.dtype])
        everything = 2 * (workload.pages(self.page_size) + workload.parallel)
        device = everything if tiers is Tiers.EVERYTHING else self.pools.device
        host = self.pools.host if tiers in (Tiers.HOST, Tiers.STORE) else 0
        values: dict[SettingPath, Any] = {
            ("model", "path"): str(self.model),
            ("model", "device"): self.device,
            ("model", "dtype"): self.dtype,
            ("replicas",): 1,
            ("cache", "page_size"): self.page_size,
            ("cache", "device_memory"): device * layout.payload_bytes,
            ("cache", "host_memory"): host * layout.block_bytes,
            ("cache", "write_policy"): "write_through",
            ("scheduler", "max_running"): workload.parallel,
            ("store", "url"): store.as_uri() if tiers is Tiers.STORE else "none",
            ("store", "capacity"): 4 * everything * layout.block_bytes,
            # A small workload's hits are below the default threshold, and would be computed.
            ("store", "prefetch_threshold"): self.page_size,
            ("store", "prefetch_policy"): self.prefetch_policy,
            ("router", "deadline"): _ROUTER_DEADLINE,
            ("heartbeat", "timeout"): _HEARTBEAT_TIMEOUT,
            ("api", "host"): "127.0.0.1",
            ("api", "port"): 0,
        }
        flags = {f"bench --spawn ({'.'.join(path)})": (path, value) for path, value in values.items()}
        return load(self.config, flags).settings


@contextmanager
def spawned(settings: StrataSettings, name: str) -> Generator[str]:
    """The URL of a cluster with `settings`, which is gone after the block. Errors as of `serve` and `take_down`."""
    with Narrator() as narrator:
        narrator.say(f"{name}: starting a cluster")
        record = serve(settings, Stay.HANDED_OVER, narrator)
    try:
        assert record.url is not None
        yield record.url
    finally:
        try:
            with Narrator() as narrator:
                take_down(record, 0, narrator)
        finally:
            # It ignores Ctrl-C from its last steps on; the next cluster's start must hear it again.
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def store_folder() -> Generator[Path]:
    """A folder for a store, which is gone after the block."""
    folder = Path(tempfile.mkdtemp(prefix="stratakv-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
