"""Operators that PyTorch's database of operations does not reach, called by their names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.extend import (
    Body,
    BoundSymbol,
    FusionRegion,
    Session,
    Symbol,
    TensorProxy,
    contiguous_strides,
)
from tj_nvfuser.operations.table import OPERATIONS
from tj_nvfuser.testing.reference import Reference
from tj_nvfuser.translate import translated

aten = torch.ops.aten


def X(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def N(*shape: int) -> torch.Tensor:
    return torch.randint(-9, 9, shape)


CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "_fused_rms_norm.default": lambda: (X(3, 4), [4], X(4), 1e-5),
    "_native_batch_norm_legit.no_stats": lambda: (X(3, 4, 5), X(4), None, True, 0.1, 1e-5),
    "_native_batch_norm_legit_functional.default": lambda: (
        X(3, 4, 5), X(4), X(4), X(4), X(4).abs(), True, 0.1, 1e-5,
    ),
    "_reshape_alias.default": lambda: (X(3, 4), [4, 3], [3, 1]),
    "argsort.default": lambda: (X(3, 4), 0, True),
    "argsort.stable": lambda: (X(3, 4),),
    "bitwise_and.Scalar": lambda: (N(3, 4), 5),
    "bitwise_or.Scalar": lambda: (N(3, 4), 5),
    "bitwise_xor.Scalar": lambda: (N(3, 4), 5),
    "clamp_max.default": lambda: (X(3, 4), 0.5),
    "copy.default": lambda: (X(3, 4), N(4)),
    "div.Scalar_mode": lambda: (N(3, 4), 3),
    "fill.Tensor": lambda: (X(3, 4), X()),
    "fmod.Scalar": lambda: (X(3, 4), 0.7),
    "gather.default": lambda: (X(3, 4, 5), 1, torch.randint(0, 4, (2, 6, 5))),
    "isfinite.default": lambda: (X(3, 4),),
    "linear.default": lambda: (X(3, 4), X(5, 4), X(5)),
    "reshape.default": lambda: (X(3, 4), [4, 3]),
    "scatter.src": lambda: (X(3, 4, 5), 1, X(2, 4, 5).argsort(1)[:, :3], X(2, 3, 5)),
    "square.default": lambda: (X(3, 4),),
    "true_divide.Tensor": lambda: (X(3, 4), X(4)),
    "where.Scalar": lambda: (X(3, 4) > 0, 1.0, 2.0),
    "where.ScalarOther": lambda: (X(3, 4) > 0, X(3, 4), 2.0),
    "where.ScalarSelf": lambda: (X(3, 4) > 0, 1.0, X(3, 4)),
}  # fmt: skip
"""Arguments by operator."""

KEYWORDS = {"argsort.stable": {"stable": True}, "div.Scalar_mode": {"rounding_mode": "floor"}}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CALLS)
def test_operators(name: str, fusing: Any) -> None:
    assert f"aten.{name}" in OPERATIONS
    packet, overload = name.split(".")
    operator = getattr(getattr(aten, packet), overload)
    torch.manual_seed(0)
    args, kwargs = CALLS[name](), KEYWORDS.get(name, {})

    def f(x: torch.Tensor) -> Any:
        found = operator(*args, **kwargs)
        first, *rest = found if isinstance(found, tuple | list) else (found,)
        return first + x, *rest

    options = {"minimum": 1, "matmul": True, "scans": True, "indices": True}
    jitted = fusing(f, options)
    x = torch.zeros(())
    torch.testing.assert_close(jitted(x), f(x))
    calls = [c for use in tj.explain(jitted).regions for c in use.kernel.region.body.calls]
    assert f"aten.{name}" in {c.symbol.qualname for c in calls}


@pytest.mark.parametrize("reduce", [torch.any, torch.all])
def test_a_reduction_of_no_dimensions_is_declined(
    reduce: Callable[..., torch.Tensor], fusing: Any
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return reduce((x * 2).sin() > 0, dim=())

    x = X(3, 4)
    assert torch.equal(fusing(f, {"minimum": 1})(x), f(x))


def test_what_is_reshaped_twice_is_as_it_was(fusing: Any) -> None:
    """With symbolic sizes, nvFuser compiles no kernel that splits a size and merges it again."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).reshape(6, 4).reshape(3, 8).reshape(3, 2, 4).exp()

    jitted = fusing(f, {"minimum": 1})
    x = X(3, 8)
    torch.testing.assert_close(jitted(x), f(x))
    (use,) = tj.explain(jitted).regions
    reshapes = re.findall(r"ops.reshape\((\w+),", use.kernel.fused.source)
    assert reshapes == ["t1", "t1"]


@pytest.mark.parametrize("whole", [(3, 4), (3, 4, 5)], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("smaller", [False, True], ids=["one dimension", "two dimensions"])
def test_scatters_are_along_the_last_dimension(
    whole: tuple[int, ...], dim: int, smaller: bool, fusing: Any
) -> None:
    """nvFuser 0.2.36 stops at others, and where several others have equal sizes at any."""

    def f(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return (x * 2).scatter(dim, index, source).exp()

    shape = list(whole)
    shape[dim] -= 1
    shape[dim - 1] -= smaller
    index = X(*whole).argsort(dim)[tuple(map(slice, shape))]
    jitted = fusing(f, {"minimum": 1, "scans": True, "indices": True})
    x, source = X(*whole), X(*shape)
    torch.testing.assert_close(jitted(x, source), f(x, source))
    texts = "".join(use.kernel.fused.source for use in tj.explain(jitted).regions)
    found = re.findall(r"ops\.scatter\(.*, dim=(\d)\)", texts)
    assert found == ([] if len(whole) > 2 and not smaller else [str(len(whole) - 1)])


def test_scatters_of_sizes_that_are_symbols_are_declined(fusing: Any) -> None:
    """nvFuser 0.2.36 stops at them, where they are of a tensor that is filled with a number."""

    def f(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).scatter(0, index, x * 2).exp() + x.sin()

    jitted = fusing(f, {"minimum": 1, "scans": True, "indices": True}, dynamic=True)
    x = X(5)
    torch.testing.assert_close(jitted(x, x.argsort()), f(x, x.argsort()))
    texts = [use.kernel.fused.source for use in tj.explain(jitted).regions]
    assert texts
    assert not any("ops.scatter" in text for text in texts)


@pytest.mark.parametrize(("norms", "segments"), [(2, 1), (3, 2), (5, 3)])
def test_chains_of_norms_are_cut(norms: int, segments: int, fusing: Any) -> None:
    """nvFuser takes minutes to find the segments of six norms in a row."""

    def f(x: torch.Tensor) -> torch.Tensor:
        for n in range(norms):
            x = torch.nn.functional.layer_norm(x + n, (8,))
        return x

    jitted = fusing(f, {"minimum": 1})
    x = X(4, 8)
    torch.testing.assert_close(jitted(x), f(x))
    (use,) = tj.explain(jitted).regions
    assert use.kernel.fused.source.count("fd.ops.segment_set") == segments - 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_an_upcast_is_made_for_each_use(dtype: torch.dtype, fusing: Any) -> None:
    """nvFuser 0.2.36 stops at an upcast that a variance, a mean and a difference take."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(x).float()
        scale = (torch.var(y, 1, correction=0, keepdim=True) + 1e-5).rsqrt()
        return ((y - y.mean(1, keepdim=True)) * scale).to(dtype)

    jitted = fusing(f)
    x = X(8, 32).to(dtype)
    torch.testing.assert_close(jitted(x), f(x))
    (use,) = tj.explain(jitted).regions
    source = use.kernel.fused.source
    upcasts = re.findall(r"(t\d+) = fd.ops.cast\(\w+, dtype=DataType.Float\)", source)
    assert len(upcasts) >= 4
    assert [len(re.findall(rf"\b{name}\b", source)) for name in upcasts] == [2] * len(upcasts)


def proxy(name: str, *shape: int) -> TensorProxy:
    strides = contiguous_strides(shape)
    assert strides is not None
    return TensorProxy(name, shape, strides)


def test_the_gradient_of_rms_norm_which_only_cuda_has() -> None:
    inputs = proxy("a0", 3, 4), proxy("a1", 3, 4), proxy("a2", 3, 1), proxy("a3", 4)
    outputs = proxy("_0", 3, 4), proxy("_1", 4)
    g, x, rstd, weight = inputs
    symbol = Symbol.parse("aten._fused_rms_norm_backward.default")
    call = BoundSymbol(symbol, (g, x, [4], rstd, weight, [True, True]), outputs=outputs)
    language = Session(("torch",)).language
    region = FusionRegion(Body(inputs, (call,), outputs), "key", language)
    run = Reference().build(translated(region).text)

    values = [X(3, 4), X(3, 4).requires_grad_(), X(4).requires_grad_()]
    norm = torch.nn.functional.rms_norm(values[1], (4,), values[2], eps=1e-5)
    expected = torch.autograd.grad(norm, values[1:], values[0])
    scale = torch.rsqrt(values[1].square().mean(-1, keepdim=True) + 1e-5)
    got = run([values[0], values[1], scale, values[2]])
    torch.testing.assert_close(tuple(got), expected)
