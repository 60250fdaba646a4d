"""What makes KV bytes mean something: parties that agree in all of it may read each other's pages.

A worker computes its identity when the model is loaded. Its digest is in every block header and in every
path of the store; the readable form lies beside them, so that a mismatch can be named.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from itertools import groupby

import msgspec

from stratakv.kernels.shapes import LayerShape
from stratakv.storage.header import FORMAT_VERSION
from stratakv.storage.tiers import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """All that makes KV bytes mean something. Parties whose digests are equal may read each other's pages.

    Digests are hex. `component_shapes` has a line per component as `describe_shapes` writes it, with the
    heads of the whole model: neither TP size nor rank nor pool layout is part of an identity.
    """

    model_config: str
    weights: str
    kv_dtype: str
    page_size: int
    component_shapes: tuple[str, ...]
    alignment: int
    codec: str = "none"
    object_format: int = FORMAT_VERSION

    def digest(self) -> str:
        """64 hex digits over all fields."""
        return sha256(json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_json(self) -> str:
        """A readable form that `from_json` takes back."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Identity":
        """The identity that `to_json` wrote. ValueError says what is wrong with the text."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(f"not an identity: {error}") from None

    def difference(self, other: "Identity") -> list[str]:
        """A line for each field in which `other` differs, such as "page_size (64 here, 16 there)"."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{field.name} ({_brief(mine[field.name])} here, {_brief(theirs[field.name])} there)"
            for field in fields(self)
            if mine[field.name] != theirs[field.name]
        ]


def describe_shapes(component: Component, shapes: Sequence[LayerShape]) -> str:
    """One readable line for all layers of a component: `full: 30 x (heads 3, key_dim 64, value_dim 64)`."""
    runs = [(len(list(run)), shape) for shape, run in groupby(shapes)]
    text = (f"{n} x (heads {s.heads}, key_dim {s.key_dim}, value_dim {s.value_dim})" for n, s in runs)
    return f"{component}: {', '.join(text)}"


def _brief(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        return value[:12]
    return "; ".join(value) if isinstance(value, tuple) else str(value)
