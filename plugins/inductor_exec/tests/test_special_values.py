"""Special values in fused programs: NaN, infinities, zeros with signs, extremes of integers.

All calls of a test are one program, and compiled at once. Accepted differences are in `ACCEPTED`,
by operation.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import tj_core as tj
import torch

FLOATS = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-40, -2.5, 2.5, 1.0, -1.0, 1e10, 0.5)
"""Values to plant; 1e-40 is a denormal number in float32."""

TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8)

UNARY = (
    "abs", "neg", "sign", "sgn", "ceil", "floor", "round", "trunc", "frac", "exp", "exp2", "log",
    "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh", "relu", "erf",
    "erfc", "isnan", "isinf", "isfinite", "signbit", "logical_not", "square", "acos", "asin",
    "atan", "acosh", "asinh", "atanh", "cosh", "sinh", "tan", "cos", "sin", "expm1", "lgamma",
    "digamma", "isposinf", "isneginf", "deg2rad", "nan_to_num", "erfinv", "logit", "positive",
    "bitwise_not",
)  # fmt: skip

BINARY = (
    "add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "remainder", "fmod",
    "floor_divide", "pow", "atan2", "copysign", "eq", "lt", "ge", "heaviside", "hypot",
    "logaddexp", "xlogy", "nextafter", "logical_and", "logical_xor", "bitwise_and",
    "bitwise_left_shift", "bitwise_right_shift", "gcd", "lcm", "ldexp", "float_power",
    "true_divide", "rsub",
)  # fmt: skip

REDUCTIONS = (
    "amax", "amin", "argmax", "argmin", "sum", "prod", "all", "any", "mean", "var", "std",
    "logsumexp", "max", "min", "nanmean", "nansum", "softmax", "log_softmax",
)  # fmt: skip

ACTIVATIONS = (
    "gelu", "silu", "mish", "elu", "selu", "celu", "softplus", "softsign", "tanhshrink", "hardtanh",
    "hardswish", "hardsigmoid", "logsigmoid", "leaky_relu", "relu6", "hardshrink", "softshrink",
)  # fmt: skip

SPECIAL = (
    "i0", "i0e", "i1", "i1e", "ndtr", "ndtri", "log_ndtr", "entr", "erfcx", "bessel_j0", "sinc",
)  # fmt: skip

SCALARS = (0, 1, -1, 2, 0.5, math.inf, -0.0)

DIVIDES = ("remainder", "fmod", "floor_divide", "div")
SHIFTS = ("bitwise_left_shift", "bitwise_right_shift")

INFINITE = "of an infinity, PyTorch's kernel for vectors returns NaN"

ACCEPTED = {("gelu", dtype): INFINITE for dtype in TYPES if dtype.is_floating_point}
"""Differences that a user would accept, with the reasons."""


@dataclass(frozen=True)
class Call:
    """One call of an operation, called ``name``, of ``inputs``, which hold special values."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]

    def results(self, inputs: Iterator[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Its results for the next of ``inputs``."""
        found = self.function(*itertools.islice(inputs, len(self.inputs)))
        return tuple(found) if isinstance(found, tuple) else (found,)


def values(dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.tensor(FLOATS).to(dtype)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    small = (0, 1, 2, 3, 7, 8, min(64, high), 100)
    return torch.tensor([low, high, high - 1, max(low, -1), *small], dtype=dtype)


def unary(dtype: torch.dtype) -> Iterator[Call]:
    for name in UNARY:
        yield Call(name, getattr(torch, name), (values(dtype),))


def functions(dtype: torch.dtype) -> Iterator[Call]:
    """Activations and special functions."""
    for module, names in ((torch.nn.functional, ACTIVATIONS), (torch.special, SPECIAL)):
        for name in names:
            yield Call(name, getattr(module, name), (values(dtype),))


def binary(dtype: torch.dtype) -> Iterator[Call]:
    for name in BINARY:
        yield Call(name, getattr(torch, name), pairs(name, dtype))
    for mode in ("floor", "trunc"):
        yield Call(f"div_{mode}", _dividing(mode), pairs("div", dtype))


def _dividing(mode: str) -> Callable[..., Any]:
    return lambda a, b: torch.div(a, b, rounding_mode=mode)


def pairs(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of special values, but for those for which C++ leaves ``name`` undefined.

    Where a quotient overflows, PyTorch's remainders of vectors are NaN, those of elements are not.
    """
    x = values(dtype)
    a, b = x.repeat_interleave(len(x)), x.repeat(len(x))
    if dtype.is_floating_point:
        overflows = (b != 0) & (b.abs() < torch.finfo(torch.float32).tiny)
        return (a[~overflows], b[~overflows]) if name in DIVIDES else (a, b)
    info, kept = torch.iinfo(dtype), torch.ones(len(a), dtype=torch.bool)
    if name in DIVIDES:
        kept = (b != 0) & ~((a == info.min) & (b == -1))
    elif name in SHIFTS:
        kept = (b >= 0) & (b < info.bits)
    elif name == "pow":
        kept = b >= 0
    elif name in ("gcd", "lcm"):
        kept = (a != info.min) & (b != info.min)
    return a[kept], b[kept]


def reductions(dtype: torch.dtype) -> Iterator[Call]:
    for name in REDUCTIONS:
        yield Call(name, _along(name), (values(dtype).view(3, 4),))


def _along(name: str) -> Callable[..., Any]:
    return lambda x: getattr(torch, name)(x, 1)


def scalars(dtype: torch.dtype) -> Iterator[Call]:
    names = ("mul", "add", "sub") if not dtype.is_floating_point else ("mul", "add", "sub", "pow")
    for name, number in itertools.product(names, SCALARS):
        yield Call(f"{name}({number})", _with(name, number), (values(dtype),))


def _with(name: str, number: float) -> Callable[..., Any]:
    return lambda x: getattr(torch, name)(x, number)


def types(dtype: torch.dtype) -> Iterator[Call]:
    """To other types; no float to an integer, which C++ leaves undefined for most."""
    for to in (*TYPES, torch.bool, torch.float64):
        if to.is_floating_point or to is torch.bool or not dtype.is_floating_point:
            yield Call(f"to {to}", _to(to), (values(dtype),))


def _to(dtype: torch.dtype) -> Callable[..., Any]:
    return lambda x: x.to(dtype)


def known(family: Any, dtype: torch.dtype) -> Iterator[tuple[Call, tuple[torch.Tensor, ...]]]:
    """Calls that eager supports, each with eager's results."""
    for call in family(dtype):
        try:
            yield call, call.results(iter(call.inputs))
        except (RuntimeError, TypeError, NotImplementedError):
            continue


def difference(got: torch.Tensor, expected: torch.Tensor) -> str | None:
    """The difference of two results, signs of zeros included; None without one."""
    try:
        torch.testing.assert_close(got, expected, equal_nan=True)
    except AssertionError as error:
        return str(error)
    if not expected.is_floating_point():
        return None
    zero = expected == 0
    same = torch.equal(got.signbit()[zero], expected.signbit()[zero])
    return None if same else f"signs of zeros: {got}, {expected}"


@pytest.mark.sampled(20)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("family", [unary, functions, binary, reductions, scalars, types])
def test_special_values(family: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TJ_PLUGINS", "inductor,autograd,torch")
    monkeypatch.delenv("TJ_CHECK", raising=False)
    monkeypatch.delenv("TJ_STRICT", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = list(known(family, dtype))

    def program(*inputs: torch.Tensor) -> Any:
        given = iter(inputs)
        return [call.results(given) for call, _ in calls]

    torch.compiler.reset()
    jitted = tj.jit(program, session=tj.Session(overrides={"inductor": {"minimum": 1}}))
    found = jitted(*[x for call, _ in calls for x in call.inputs])
    wrong = {
        call.name: what
        for (call, expected), got in zip(calls, found, strict=True)
        for a, b in zip(got, expected, strict=True)
        if (what := difference(a, b)) is not None and (call.name, dtype) not in ACCEPTED
    }
    assert wrong == {}
    kernels = jitted.__tj__.session.regions.kernels.values()
    assert kernels
    assert all(kernel.failure is None for kernel in kernels)


def test_infinities_in_reductions_and_tangents(fusing: Any) -> None:
    x = torch.tensor([[math.inf, 1.0, 2.0], [3.0, 5.0, 4.0]])

    def program(x: torch.Tensor, target: torch.Tensor) -> Any:
        total = torch.ones(())
        # As the gradient of a loss with `reduction="none"`: tangents of its own for each sample.
        gradient = torch.ops.aten.nll_loss_backward(x[:, 0], x, target, None, 0, -100, total)
        single = torch.var_mean(x[:, :1], 1, correction=0)
        normal = torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)
        means = *torch.var_mean(x), *torch.var_mean(x, 1), *torch.std_mean(x), *single
        return *means, *normal, gradient

    given = (x, torch.tensor([1, 0]))
    found = fusing(program, {"minimum": 1})(*given)
    for got, expected in zip(found, program(*given), strict=True):
        assert difference(got, expected) is None


def test_an_infinity_beside_a_place_that_is_read(fusing: Any) -> None:
    x = torch.tensor([[[math.inf, 1.0, 2.0, -math.inf]]])
    outside = torch.full((1, 1, 1, 2), -3.0)

    def program(x: torch.Tensor, places: torch.Tensor) -> Any:
        sampled = torch.nn.functional.grid_sample(x[None], places, align_corners=True)
        between = torch.nn.functional.interpolate(x, size=3, mode="linear", align_corners=True)
        return between, sampled

    found = fusing(program, {"minimum": 1})(x, outside)
    pairs = zip(found, program(x, outside), strict=True)
    assert [difference(*pair) for pair in pairs] == [None, None]


def test_gradients_without_memory(fusing: Any) -> None:
    """The gradient of `sgn` is a tensor of zeros that has no memory."""
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    jitted = fusing(lambda x: torch.sgn(x * 1) * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        (found,) = torch.autograd.grad(jitted(x).sum(), x)
    assert torch.equal(found, torch.zeros(5))
