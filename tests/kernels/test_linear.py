"""The sliced output projection is a Linear, whatever the widths and the rows."""

import pytest
import torch

from stratakv.kernels.linear import SLICE, SlicedLinear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("features", [7, SLICE, SLICE + 1, 3 * SLICE - 5])
@pytest.mark.parametrize("shape", [(1, 0), (1, 1), (1, 5), (70,)])
def test_equals_linear(shape, features, bias):
    linear = torch.nn.Linear(24, features, bias=bias)
    inputs = torch.randn(*shape, 24)
    with torch.no_grad():
        torch.testing.assert_close(SlicedLinear(linear)(inputs), linear(inputs))


def test_shares_the_weight():
    linear = torch.nn.Linear(4, 2 * SLICE)
    assert SlicedLinear(linear).weight is linear.weight
