"""The sliced output projection is a Linear, whatever the widths and the rows."""

import pytest
import torch

from stratakv.kernels.linear import SLICE, SlicedLinear, lay_out_for_decode


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


def test_layout_for_decode_changes_strides_of_wide_weights_only():
    network = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Linear(16, 8), torch.nn.Linear(8, 32).bfloat16()
    )
    weights = [linear.weight.detach().clone() for linear in network]
    inputs = torch.randn(3, 8)
    before = network[0](inputs)
    lay_out_for_decode(network)
    torch.testing.assert_close(network[0](inputs), before)
    assert [linear.weight.stride() for linear in network] == [(1, 16), (16, 1), (8, 1)]
    for linear, weight in zip(network, weights, strict=True):
        assert torch.equal(linear.weight, weight)
