"""Small programs that show whether oneDNN's operators do what tj-onednn uses them for."""

from __future__ import annotations

import torch

from tj_onednn import adapter, kernels, packing
from tj_onednn.int8.kernels import sums_are_exact

__all__ = ["convolutions", "int8", "packed", "products"]


def _close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.stride() == expected.stride(), f"strides are {found.stride()}"
    assert torch.allclose(found, expected, atol=1e-5), f"{found} is not {expected}"


def _numbers(*sizes: int) -> torch.Tensor:
    count = torch.Size(sizes).numel()
    return torch.linspace(-1, 1, count).reshape(sizes)


def products() -> None:
    """See that a product is eager's, with a bias and an activation, outside of all contexts."""
    x, weight, bias = _numbers(5, 7), _numbers(3, 7), _numbers(3)
    with torch.autocast("cpu", torch.bfloat16), adapter.apart():
        found = kernels.linear(x, weight, bias, post=("relu", [], ""))
        _close(found, torch.nn.functional.linear(x, weight, bias).relu())


def convolutions() -> None:
    """See that a convolution is eager's, with an activation."""
    x, weight, bias = _numbers(2, 4, 6, 6), _numbers(8, 2, 3, 3), _numbers(8)
    found = kernels.convolution(x, weight, bias, 2, (1, 0), 1, 2, post=("relu", [], ""))
    _close(found, torch.conv2d(x, weight, bias, 2, (1, 0), 1, 2).relu())


def packed() -> None:
    """See that packed weights give eager's results, and that a write to one is noticed."""
    weights, x, weight = packing.Weights(), _numbers(5, 7), _numbers(3, 7)
    images, filters = _numbers(2, 4, 6, 6), _numbers(8, 4, 3, 3)
    steps, gates = _numbers(3, 2, 4), (_numbers(16, 4), _numbers(16, 4) / 2)
    (frozen, *_) = kept = weights.hold([weight, filters, *gates])
    _close(packing.linear(weights)(x, weight), torch.nn.functional.linear(x, weight))
    found = packing.convolution(weights)(images, filters)
    _close(found.contiguous(), torch.conv2d(images, filters))
    biases, state = [_numbers(16)] * 2, [_numbers(2, 4)] * 2
    none: list[int] = []
    how = (False, none, 2, 4, 1, True, False, False, False)
    layer = packing.recurrent(weights)(steps, *gates, *biases, *state, *how)
    expected = torch.lstm(
        steps, [x[None] for x in state], [*gates, *biases], True, 1, 0.0, False, False, False
    )
    _close(layer[0], expected[0])
    assert all(f.packed for f in kept), "a weight is not packed"
    weight[0, 1:2].mul_(1)  # no bit is another
    assert frozen.written, "a write is not noticed"


def int8() -> None:
    """See that sums of the largest integers are exact, and that weights alone may be int8."""
    assert sums_are_exact(), "sums saturate"
    one, weight = torch.ones(1, 64, dtype=torch.bfloat16), torch.full((5, 64), -127).to(torch.int8)
    found = adapter.INT8_WEIGHT_PRODUCT(one, weight, torch.ones(5, dtype=torch.bfloat16)).float()
    _close(found, torch.full((1, 5), -127.0 * 64))
