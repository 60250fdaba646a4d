"""Traces of real services in Mooncake's format: one JSON object a line, prompts as chains of block ids."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from stratakv.cluster.replay.request import ReplayRequest
from stratakv.storage.tiers import PageKey

ROUND_SECONDS = 300.0
"""A trace has no rounds: its requests are counted by stretches of five minutes."""

_Count = Annotated[int, msgspec.Meta(ge=0)]


class TraceError(Exception):
    """A trace cannot be read; the message names the line and what is wrong with it."""


class TraceLine(msgspec.Struct, frozen=True):
    """A request of the trace: `timestamp` in ms, lengths in tokens, and the ids of the prompt's blocks. The last block
    may be short. Equal ids mean an equal prefix up to and including that block."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: _Count
    hash_ids: list[_Count]


def read_trace(path: Path, block_tokens: int) -> list[ReplayRequest]:
    """The requests of a trace by arrival, each as it was first asked: what its answer added to the cache is not known,
    since a trace gives no ids for it. A page is a block of `block_tokens` tokens. TraceError for what is no trace."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is no text: {error}") from None
    lines = sorted(_lines(path, text, block_tokens), key=lambda numbered: numbered[1].timestamp)
    if not lines:
        raise TraceError(f"{path}: the trace is empty")
    start, seen = lines[0][1].timestamp, set[int]()
    return [_request(number, line, start, seen, block_tokens) for number, line in lines]


def _request(number: int, line: TraceLine, start: float, seen: set[int], block: int) -> ReplayRequest:
    full = line.hash_ids[: line.input_length // block]
    usable = (line.input_length - 1) // block
    known = next((i for i, id in enumerate(full[:usable]) if id not in seen), min(usable, len(full)))
    seen.update(full)
    seconds = (line.timestamp - start) / 1000
    return ReplayRequest(
        round=int(seconds / ROUND_SECONDS), seconds=seconds, prompt_tokens=line.input_length,
        output_tokens=line.output_length, keys=[_key(id) for id in full], seen_tokens=known * block,
        name=f"the request of line {number}",
    )  # fmt: skip


def _key(id: int) -> PageKey:
    return id.to_bytes(32, "big")


def _lines(path: Path, text: str, block: int) -> Iterator[tuple[int, TraceLine]]:
    decoder = msgspec.json.Decoder(TraceLine)
    parents: dict[int, tuple[int, int]] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        if not raw.strip():
            continue
        try:
            line = decoder.decode(raw)
            _check(line, block)
            _check_chain(line, number, parents)
        except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from None
        yield number, line


def _check(line: TraceLine, block: int) -> None:
    blocks = -(-line.input_length // block)
    if len(line.hash_ids) != blocks:
        raise ValueError(
            f"input_length is {line.input_length}, which is {blocks} blocks of {block} tokens (--block-tokens), and "
            f"there are {len(line.hash_ids)} hash_ids"
        )
    if line.hash_ids and max(line.hash_ids) >= 1 << 256:
        raise ValueError("an id in hash_ids is not below 2^256")


def _check_chain(line: TraceLine, number: int, parents: dict[int, tuple[int, int]]) -> None:
    """Ids stand for whole prefixes, so an id always follows the same one."""
    before = -1
    for id in line.hash_ids:
        known, first = parents.setdefault(id, (before, number))
        if known != before:
            raise ValueError(
                f"id {id} in hash_ids follows {_shown(before)} here and {_shown(known)} on line {first}; ids must "
                "stand for the whole prefix up to their block"
            )
        before = id


def _shown(id: int) -> str:
    return "nothing" if id < 0 else str(id)
