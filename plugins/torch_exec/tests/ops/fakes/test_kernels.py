"""Operators that PyTorch decomposes where sizes are symbols: their kernels' results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F

SHAPES = {
    1: [(1, 2, 5), (2, 3, 7), (1, 1, 4)],
    2: [(1, 3, 5, 6), (2, 2, 7, 3), (1, 1, 4, 4)],
    3: [(1, 2, 3, 4, 5), (2, 1, 4, 3, 3), (1, 1, 2, 2, 2)],
}
MODES = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "bicubic": (2,),
    "trilinear": (3,),
}
CASES = [
    (mode, dims, corners)
    for mode, all_dims in MODES.items()
    for dims in all_dims
    for corners in ((None,) if "nearest" in mode else (False, True))
]
SIZES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "size": lambda step, dims: {"size": [step + 3] * dims},
    "factor": lambda step, dims: {"scale_factor": 2},
    "odd factor": lambda step, dims: {"scale_factor": 1.7},
    "factor of the size": lambda step, dims: {"scale_factor": 1.7, "recompute_scale_factor": True},
}


def _with_infinity(shape: tuple[int, ...]) -> torch.Tensor:
    x = torch.randn(shape)
    x.view(-1)[1] = torch.inf
    return x.requires_grad_()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("mode", "dims", "corners"), CASES)
def test_interpolation(mode: str, dims: int, corners: bool | None, size: str) -> None:
    def program(x: torch.Tensor, step: int) -> torch.Tensor:
        return F.interpolate(x, **SIZES[size](step, dims), mode=mode, align_corners=corners)

    jitted = tj.jit(program, dynamic=True)
    for step, shape in enumerate(SHAPES[dims]):
        x = _with_infinity(shape)
        found, expected = jitted(x, step), program(x, step)
        torch.testing.assert_close(found, expected, equal_nan=True, check_stride=True)
        finite = expected.isfinite()
        got, wanted = (torch.autograd.grad(y[finite].sum(), x) for y in (found, expected))
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("corners", [False, True])
def test_interpolation_of_bytes(corners: bool) -> None:
    def program(x: torch.Tensor, step: int) -> torch.Tensor:
        return F.interpolate(x, [step + 7, step + 9], mode="bilinear", align_corners=corners)

    jitted = tj.jit(program)
    for step in range(3):
        x = torch.randint(0, 256, (1, 3, 5 + step, 6), dtype=torch.uint8)
        assert torch.equal(jitted(x, step), program(x, step))


def test_size_and_factor_raise() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.upsample_bilinear2d.vec(x, [4, 4], False, [2.0, 2.0])

    jitted = tj.jit(program, dynamic=True)
    with pytest.raises(RuntimeError, match="Must specify exactly one"):
        program(torch.ones(1, 1, 2, 2))
    with pytest.raises(RuntimeError, match="Must specify exactly one"):
        jitted(torch.ones(1, 1, 2, 2))


OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "margins behind the end": lambda x: F.multilabel_margin_loss(
        x, torch.tensor([0, -1, 2, 3]).expand(len(x), 4)
    ),
    "margin": lambda x: F.multi_margin_loss(x, torch.arange(len(x)) % 4),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others(name: str) -> None:
    jitted = tj.jit(OTHERS[name], dynamic=True)
    for n in (3, 5, 2):
        x = torch.randn(n, 4)
        torch.testing.assert_close(jitted(x), OTHERS[name](x))


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_random_numbers_after_a_dropout(p: float, gradient: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, p, True) + torch.randn_like(x)

    jitted = tj.jit(program, dynamic=True)
    for n in (4, 5):
        x = torch.ones(n, requires_grad=gradient)
        torch.manual_seed(0)
        expected = program(x), torch.rand(1)
        torch.manual_seed(0)
        assert torch.equal(jitted(x), expected[0])
        assert torch.equal(torch.rand(1), expected[1])


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_networks_drop_between_their_layers(kind: type, batch_first: bool) -> None:
    network = kind(2, 3, 3, dropout=0.5, bidirectional=True, batch_first=batch_first)
    jitted = tj.jit(lambda x: network(x), dynamic=True)
    with torch.no_grad():
        for steps in (4, 5):
            x = torch.randn(steps, 3, 2)
            torch.manual_seed(0)
            expected = network(x), torch.rand(1)
            torch.manual_seed(0)
            torch.testing.assert_close(jitted(x), expected[0])
            assert torch.equal(torch.rand(1), expected[1])
