"""Calls that the executor takes, and its reasons to decline; decided on metadata alone."""

from __future__ import annotations

from typing import Any

import pytest
from tj_core.extend import (
    BoundSymbol,
    Decline,
    Device,
    DType,
    Symbol,
    SymDim,
    TagSet,
    TensorProxy,
)
from tj_example_exec.executor import example_executor
from tj_example_exec.plugin import Options

X = TensorProxy("x", (4, 8), (8, 1))
OUT = TensorProxy("t0", (4, 8), (8, 1))


def ask(name: str, *args: Any, min_elements: int = 1, **kwargs: Any) -> bool | Decline:
    outputs = kwargs.pop("outputs", OUT)
    tags = kwargs.pop("tags", TagSet())
    symbol = Symbol.parse(name if "." in name else f"torch.nn.functional.{name}")
    call = BoundSymbol(symbol, args, tuple(kwargs.items()), outputs, tags=tags)
    rule = example_executor(min_elements).claims.require(call)
    assert rule.value.check is not None
    return rule.value.check(call)


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("gelu", (X,), {"approximate": "tanh"}),
        ("gelu", (X, "tanh"), {}),
        ("silu", (X,), {}),
        ("silu", (X,), {"inplace": False}),
        ("torch.rms_norm", (X, (8,)), {}),
        ("torch.rms_norm", (X, (8,)), {"weight": TensorProxy("w", (8,), (1,)), "eps": 1e-5}),
    ],
)
def test_takes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert ask(name, *args, **kwargs) is True


F64, BF16 = DType("float64", 64, "float"), DType("bfloat16", 16, "float")


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (lambda: ask("gelu", X), "approximate='none'; only approximate='tanh' is implemented"),
        (lambda: ask("silu", X, inplace=True), "inplace=True; only inplace=False is implemented"),
        (
            lambda: ask("gelu", X, approximate="tanh", out=OUT),
            "called with arguments the kernel lacks: got an unexpected keyword argument 'out'",
        ),
        (lambda: ask("silu", X.replace(dtype=F64)), "x is float64; only float32 is implemented"),
        (
            lambda: ask("silu", X, outputs=OUT.replace(dtype=BF16)),
            "t0 is bfloat16; only float32 is implemented",
        ),
        (
            lambda: ask("silu", X.replace(device=Device("cuda", 0))),
            "x is on cuda:0; the kernels run on the CPU",
        ),
        (lambda: ask("silu", X.replace(layout="sparse_coo")), "x is not a plain dense tensor"),
        (lambda: ask("silu", X.replace(shape=(0, 8))), "x has no elements"),
        (lambda: ask("silu", X, min_elements=33), "x has 32 elements; min_elements is 33"),
        (
            lambda: ask("silu", X.replace(shape=(SymDim("s0", 4), 8)), min_elements=2),
            "the size of x is not known before it runs",
        ),
        (lambda: ask("silu", X.replace(tags=TagSet(["EXAMPLE_SKIP"]))), "tagged EXAMPLE_SKIP"),
        (lambda: ask("silu", X, tags=TagSet(["EXAMPLE_SKIP"])), "tagged EXAMPLE_SKIP"),
    ],
)
def test_declines(verdict: Any, reason: str) -> None:
    assert verdict() == Decline(reason)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Options(min_elements=0)
