"""What gateways and heads say to each other: msgpack over ZeroMQ, encoded once, decoded strictly.

A gateway sends `Generate`, `Abort` and a `Ping` each second; a head answers with one `Step` per engine step
and gateway, and a `Beat` each second, so that on either side silence can be told from idleness. A router is a
client too: it sends `Watch` and gets what `events.py` has instead of steps. Nothing here is ever pickled.
"""

import sys
from array import array
from collections.abc import Sequence
from enum import StrEnum
from typing import Union

import msgspec

from stratakv.cluster.events import PageEvents, Snapshot, Watch
from stratakv.cluster.explain import Explain, Explained
from stratakv.storage.restore import HitPolicy, Rule
from stratakv.storage.tiers import Component

LOWEST_PRIORITY, HIGHEST_PRIORITY = -8, 8
"""Between these a request may say how long its pages are worth keeping."""


class FinishReason(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How output tokens are drawn. Randomness is a pure function of (seed, choice, position)."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    seed: int = 0
    choice: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """One request. `tokens` are u32 little-endian, prompt only; `id` is unique per gateway process. Pages of a request
    with a larger `priority` (LOWEST_PRIORITY to HIGHEST_PRIORITY) are kept longer by policies that ask for it."""

    id: str
    tokens: bytes
    sampling: Sampling
    extra_key: str | None = None
    cache_salt: str | None = None
    priority: int = 0


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """The client is gone or has enough: free everything of this request. Unknown ids are ignored."""

    id: str


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """The gateway lives: sent each second, so that a head can tell a gateway that is gone from one with
    nothing to say.
    """


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one request's prompt: device + host + store + computed = prompt, always.

    `misses` splits `computed` by named reason; `recomputed` is work done again after a retraction.
    """

    prompt: int
    device: int = 0
    host: int = 0
    store: int = 0
    computed: int = 0
    recomputed: int = 0
    misses: dict[str, int] = {}

    @property
    def adds_up(self) -> bool:
        """Whether every prompt token is accounted for once, and every computed one has its reason."""
        served = self.device + self.host + self.store
        return served + self.computed == self.prompt and sum(self.misses.values()) == self.computed


class Failure(msgspec.Struct, frozen=True):
    """Why a request cannot be served. `code` is an OpenAI error code, `param` the field, the message names a
    remedy.
    """

    code: str
    message: str
    param: str | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step added to one request. `usage` comes with the first and the last delta; `finish` or
    `failure` ends it.
    """

    id: str
    tokens: tuple[int, ...] = ()
    finish: FinishReason | None = None
    usage: Usage | None = None
    failure: Failure | None = None


class Step(msgspec.Struct, frozen=True, tag="step"):
    """All deltas of one engine step for one gateway."""

    generation: int
    number: int
    deltas: list[Delta]


class HierarchyCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the hierarchy of a replica has done since its generation began, in pages unless it says otherwise.

    All but `write_backlog` only grow while the generation lives.
    """

    loaded: int = 0
    """From host to device."""
    backed_up: int = 0
    """From device to host."""
    prefetched: int = 0
    """From the store to host, landed on all ranks."""
    prefetch_lost: int = 0
    """Asked of the store and not landed: cut, missing after all, corrupt or failed."""
    written: int = 0
    """From host to the store."""
    write_failed: int = 0
    write_dropped: int = 0
    """Not written because the queue was full."""
    left_device: int = 0
    left_host: int = 0
    lost: dict[str, int] = {}
    """Pages that left the replica for good, by reason in the words of `tiers.Miss`."""
    retractions: int = 0
    """Running requests that had to give up their place, to be computed again."""
    write_backlog: int = 0
    """Pages that wait in host memory for their write to the store, now."""


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The head lives: sent each second to every client that has spoken to it. Load figures and `counts` are
    informative.

    `sequence` is the number of its latest batch of page events: a router that has not got that one has lost it.
    """

    generation: int
    step: int
    waiting: int
    running: int
    sequence: int = 0
    counts: HierarchyCounts = HierarchyCounts()


class ComponentRule(msgspec.Struct, frozen=True):
    """What a component needs for a prefix to be usable, beside full attention, which needs all of it: the last `pages`
    pages (`trailing`), or the last page alone (`exact`)."""

    component: Component
    rule: Rule
    pages: int = 0

    @property
    def policy(self) -> HitPolicy:
        """The same as `storage.restore` has it. ValueError for a rule that contradicts its pages."""
        return HitPolicy(self.rule, self.pages)


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway must know of the model a replica serves. Travels through Ray with the endpoint."""

    name: str
    path: str
    """Directory or hub name the tokenizer is loaded from."""
    vocab_size: int
    max_total_tokens: int
    """Prompt + output tokens one request may have: the smaller of the model's context and the device pool."""
    context_length: int
    page_size: int
    eos_token_ids: tuple[int, ...]
    identity: str
    """Hex digest of what makes KV bytes mean something; equal identities may share pages."""
    rules: tuple[ComponentRule, ...] = ()
    """Of the components that replicas announce beside the full pages; none for a model with full attention alone."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where the head of a replica listens, and the key to talk to it."""

    replica: int
    generation: int
    address: str
    public_key: str
    """CURVE public key of the head, Z85."""
    card: ModelCard


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair (Z85). Gateways share one; heads admit only its public half."""

    public: str
    secret: str


ToHead = Union[Generate, Abort, Ping, Watch, Explain]  # noqa: UP007 - msgspec decodes a typing.Union
ToGateway = Union[Step, Beat, Explained]  # noqa: UP007
ToRouter = Union[Snapshot, PageEvents, Beat]  # noqa: UP007

_encoder = msgspec.msgpack.Encoder()
_to_head = msgspec.msgpack.Decoder(ToHead)
_to_gateway = msgspec.msgpack.Decoder(ToGateway)
_to_router = msgspec.msgpack.Decoder(ToRouter)


def encode(message: ToHead | ToGateway | ToRouter) -> bytes:
    """Msgpack bytes of `message`."""
    return _encoder.encode(message)


def decode_to_head(data: bytes) -> ToHead:
    """A gateway's or router's message. Raises msgspec.DecodeError or msgspec.ValidationError on anything else."""
    return _to_head.decode(data)


def decode_to_gateway(data: bytes) -> ToGateway:
    """A head's message. Raises msgspec.DecodeError or msgspec.ValidationError on anything else."""
    return _to_gateway.decode(data)


def decode_to_router(data: bytes) -> ToRouter:
    """What a head sends to a router. Raises msgspec.DecodeError or msgspec.ValidationError on anything else."""
    return _to_router.decode(data)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as u32 little-endian, the form `Generate.tokens` has. OverflowError for an id that is not u32."""
    words = array("I", tokens)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def unpack_tokens(data: bytes) -> list[int]:
    """What `pack_tokens` packed. ValueError when `data` is not whole u32 values."""
    words = array("I", data)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tolist()
