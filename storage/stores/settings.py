"""Settings of the store tier."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, field_validator

from stratakv.storage.settings import SettingsModel, Size, parse_size


def default_url(environment: Mapping[str, str] = os.environ) -> str:
    """A directory under the user's cache, as a URL."""
    cache = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/tmp")) / ".cache"
    return (Path(cache).absolute() / "stratakv" / "store").as_uri()


class StoreSettings(SettingsModel):
    """L3, the store that all replicas share."""

    url: str | None = Field(
        default_factory=default_url,
        description="file:///directory, memory: or a.module:Class; `none` for no store",
    )
    capacity: Size = Field(
        parse_size("10GiB"),
        description="bytes all replicas together may keep in the store, whatever their identity",
    )
    batch_pages: int = Field(128, ge=1, description="pages in one call to the store")
    prefetch_threshold: int = Field(
        256, ge=1, description="tokens that a prefetch must bring to be worth the way to the store"
    )
    prefetch_policy: str = Field("break_even", description="when a waiting request gives up on the store")
    prefetch_timeout_base: float = Field(
        1.0, ge=0, description="seconds that the prefetch policy `timeout` waits for any prefetch"
    )
    prefetch_timeout_per_1024: float = Field(
        0.25, ge=0, description="seconds that `timeout` waits besides for each 1,024 tokens of a prefetch"
    )
    deadline: float = Field(
        30.0, gt=0, description="seconds a request waits for the store at most, whatever the policy"
    )
    head_groups: int | None = Field(
        None,
        ge=1,
        description="equal shares of the KV heads that are stored as objects of their own; by default one per rank. "
        "Set it to the largest tensor_parallel in use, and replicas of different sizes share pages",
    )
    readers: int = Field(4, ge=1, le=64, description="threads of a rank that read from the store")

    @field_validator("url", mode="before")
    @classmethod
    def _none(cls, url: object) -> object:
        return None if url in ("none", "") else url
