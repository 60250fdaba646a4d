import json
from dataclasses import replace

import pytest

from stratakv.kernels.shapes import LayerShape
from stratakv.storage.identity import Identity, describe_shapes
from stratakv.storage.tiers import Component

IDENTITY = Identity(
    model_config="a" * 64,
    weights="b" * 64,
    kv_dtype="float32",
    page_size=64,
    component_shapes=(describe_shapes(Component.FULL, [LayerShape(3, 64, 64)] * 30),),
    alignment=4096,
)


def test_identity_comes_back_from_json():
    assert Identity.from_json(IDENTITY.to_json()) == IDENTITY
    assert json.loads(IDENTITY.to_json())["page_size"] == 64


def test_the_digest_depends_on_every_field():
    changed = [
        replace(IDENTITY, model_config="c" * 64),
        replace(IDENTITY, weights="c" * 64),
        replace(IDENTITY, kv_dtype="bfloat16"),
        replace(IDENTITY, page_size=16),
        replace(IDENTITY, component_shapes=()),
        replace(IDENTITY, alignment=64),
        replace(IDENTITY, codec="fp8"),
        replace(IDENTITY, object_format=2),
    ]
    assert len({identity.digest() for identity in [IDENTITY, *changed]}) == 9
    assert replace(IDENTITY).digest() == IDENTITY.digest()
    assert len(bytes.fromhex(IDENTITY.digest())) == 32


def test_a_difference_is_readable():
    other = replace(IDENTITY, page_size=16, weights="c" * 64)
    assert IDENTITY.difference(other) == [
        "weights (bbbbbbbbbbbb here, cccccccccccc there)",
        "page_size (64 here, 16 there)",
    ]
    assert IDENTITY.difference(IDENTITY) == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"page_size": "64"}'])
def test_what_is_no_identity(text):
    with pytest.raises(ValueError, match="not an identity"):
        Identity.from_json(text)


def test_shapes_are_described_in_runs():
    a, b = LayerShape(3, 64, 64), LayerShape(1, 192, 128)
    assert describe_shapes(Component.FULL, [a, a, b]) == (
        "full: 2 x (heads 3, key_dim 64, value_dim 64), 1 x (heads 1, key_dim 192, value_dim 128)"
    )
