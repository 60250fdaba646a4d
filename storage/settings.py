"""Settings of the storage floor, and the two types every settings model of the tree is made of."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
          "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}  # fmt: skip


def parse_size(value: object) -> int:
    """Bytes of `512MiB`, `2GiB`, `1.5GB` or a plain number of bytes. ValueError says how a size is written."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(value))
        if not match or match[2] not in _UNITS:
            raise ValueError(f"{value!r} is not a size; write it as 512MiB, 2GiB or a number of bytes")
        size = int(float(match[1]) * _UNITS[match[2]])
    if size < 0:
        raise ValueError(f"{value!r} is negative; a size is 0 or more")
    return size


def format_size(size: int) -> str:
    """`size` bytes for people: four digits in the largest binary unit that fits, such as `512MiB` or `1.15GiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.4g}{unit}"
    return f"{size}B"


def exact_size(size: int) -> str:
    """`size` bytes for settings files: in the largest unit of which it is a whole number, so that it reads back
    equal."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return f"{size}B"


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(exact_size, return_type=str)]
"""A number of bytes that settings files and flags write with a unit."""


class SettingsModel(BaseModel):
    """Base of every settings model: frozen, and an unknown field is an error rather than a silent no-op."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CacheSettings(SettingsModel):
    """The device and host tiers of one rank."""

    page_size: int = Field(64, ge=1, le=4096, description="tokens in a page")
    device_memory: Size = Field(parse_size("512MiB"), description="bytes of KV in device memory, per rank")
    host_memory: Size = Field(
        parse_size("1GiB"), description="bytes of KV in host memory, per rank; 0 turns the tier off"
    )
    host_directory: Path = Field(Path("/dev/shm"), description="tmpfs that holds the host slabs")
    write_policy: str = Field("write_through", description="when a device page is copied to host")
    eviction_policy: str = Field("lru", description="which page leaves first")
    sliding_share: float = Field(
        0.3, gt=0, lt=1, description="share of both memories for sliding windows, in models that have them"
    )
    recurrent_share: float = Field(
        0.3, gt=0, lt=1, description="share of both memories for recurrent states, in models that have them"
    )
    checkpoint_interval: int | None = Field(
        None,
        ge=0,
        description="tokens between recurrent checkpoints within a prompt, a multiple of cache.page_size; 0 for none, "
        "by default the whole pages in 2048",
    )
    unified: bool = Field(
        False, description="pages and recurrent states share one device buffer instead of fixed shares"
    )

    @property
    def checkpoint_pages(self) -> int:
        """Pages between checkpoints within a prompt; 0 for none."""
        interval = 2048 if self.checkpoint_interval is None else self.checkpoint_interval
        return interval // self.page_size

    @model_validator(mode="after")
    def _options_go_together(self) -> "CacheSettings":
        if self.checkpoint_interval and self.checkpoint_interval % self.page_size:
            below = self.checkpoint_interval // self.page_size * self.page_size
            raise ValueError(
                f"cache.checkpoint_interval is {self.checkpoint_interval} and cache.page_size is {self.page_size}: "
                f"checkpoints lie on page boundaries, so set the interval to a multiple, such as "
                f"{below or self.page_size}"
            )
        if self.write_policy == "write_back" and not self.host_memory:
            raise ValueError(
                "cache.write_policy is write_back and cache.host_memory is 0: there is no host memory to write back "
                "to; give it some, or use write_through, which then does nothing"
            )
        return self
