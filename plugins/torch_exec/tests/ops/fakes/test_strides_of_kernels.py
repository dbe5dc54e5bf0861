"""Strides of fake kernels, with tj's corrections, equal those of PyTorch's kernels.

For each operator that a call of PyTorch's op_db runs, on transposed tensors and on tensors with
gaps, and in backwards with tangents of other strides. Programs are traced on fake tensors, and
depend on strides: `x.is_contiguous()`, `x.view(-1)`.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.databases.op_db import full_name
from tj_conformance.oracle.layouts import LAYOUTS, NOT_STRIDED
from tj_conformance.sampling import FULL
from tj_conformance.sweep.sample import samples
from torch.testing._internal.common_methods_invocations import op_db

EVERY = 1 if FULL else 8


def strides(x: Any) -> list[int] | None:
    """Strides that locate elements; None for tensors without any."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.numel() < 2:
        return None
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", op_db[1::EVERY] if EVERY > 1 else op_db, ids=full_name)
def test_fake_kernels_say_the_strides_of_real_ones(op: Any, layout: str, comparing: Any) -> None:
    if torch.float32 not in op.supported_dtypes("cpu"):
        pytest.skip("float32 has no kernel on CPUs")
    if full_name(op) in NOT_STRIDED:
        pytest.skip("its samples are sparse")
    both = comparing(strides)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(op, torch.float32, 6):
            if sample.eager is not None:
                with both:
                    sample.changed(LAYOUTS[layout])
    assert both.found == set()


F = torch.nn.functional
X = torch.rand(2, 16, 32) * 0.9 + 0.05

OF_F = (
    "celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish"
    " relu relu6 rrelu selu silu softplus softshrink softsign tanhshrink normalize"
)
OF_TORCH = (
    "sigmoid tanh logit erf exp log abs sin asin acosh atanh sqrt rsqrt reciprocal square"
    " expm1 log1p exp2 erfinv digamma i0 sinc nan_to_num sgn frac"
)
OF_TWO = (
    "add mul sub div pow atan2 hypot maximum minimum fmax fmod remainder copysign xlogy"
    " logaddexp ldexp"
)
LOSSES = (
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div"
    " binary_cross_entropy_with_logits poisson_nll_loss"
)

UNARY: dict[str, Any] = {
    **{f"F.{name}": getattr(F, name) for name in OF_F.split()},
    **{f"torch.{name}": getattr(torch, name) for name in OF_TORCH.split()},
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "rrelu, training": lambda x: F.rrelu(x, training=True),
    "dropout": F.dropout,
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "log_softmax, last": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance_norm": F.instance_norm,
    "group_norm": lambda x: F.group_norm(x, 4),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
}

BINARY: dict[str, Any] = {
    **{name: getattr(torch, name) for name in OF_TWO.split()},
    **{name: functools.partial(getattr(F, name), reduction="none") for name in LOSSES.split()},
    "lerp": lambda x, y: torch.lerp(x, y, y),
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "where": lambda x, y: torch.where(x > 0.5, x, y),
}

ORDERS = {"contiguous": (0, 1, 2), "transposed": (0, 2, 1), "reversed": (2, 1, 0)}


def laid_out(x: torch.Tensor, order: str) -> torch.Tensor:
    dims = ORDERS[order]
    made = x.detach().permute(dims).clone(memory_format=torch.contiguous_format)
    return made.permute([dims.index(i) for i in range(3)])


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_backwards_of_tangents_with_other_strides(name: str, comparing: Any) -> None:
    function = UNARY.get(name) or BINARY[name]
    both, given = comparing(strides), [X] if name in UNARY else [X, X.flip(0)]
    for orders in itertools.product(ORDERS, repeat=1 + len(given)):
        args = [laid_out(x, how) for x, how in zip(given, orders, strict=False)]
        args[0].requires_grad_()
        with both:
            out = function(*args)
            out.backward(laid_out(torch.randn(out.shape), orders[-1]))
    assert both.found == set()


def test_a_backward_that_views_what_another_layout_made() -> None:
    """A linear layer flattens its tangent, with a view where the strides allow it."""

    def f(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        made = F.softplus(F.linear(x, w)).transpose(1, 2)
        return made.contiguous() * scale

    x, w = torch.randn(2, 5, 8, requires_grad=True), torch.randn(6, 8, requires_grad=True)
    scale = torch.randn(2, 6, 5)
    jitted = tj.jit(f, plugins=["torch", "autograd"])
    expected = torch.autograd.grad(f(x, w, scale).sum(), (x, w))
    for mine, theirs in zip(
        torch.autograd.grad(jitted(x, w, scale).sum(), (x, w)), expected, strict=True
    ):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_padding_keeps_the_memory_format(mode: str, dims: int, comparing: Any) -> None:
    formats = torch.contiguous_format, {2: torch.channels_last, 3: torch.channels_last_3d}[dims]
    both = comparing(strides)
    for how, tangents in itertools.product(formats, repeat=2):
        x = torch.rand(2, 3, *[4] * dims).to(memory_format=how).requires_grad_()
        with both:
            out = F.pad(x, [1] * 2 * dims, mode=mode)
            out.backward(torch.randn(out.shape).to(memory_format=tangents))
    assert both.found == set()
