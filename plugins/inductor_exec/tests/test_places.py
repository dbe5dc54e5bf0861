"""Integers that Inductor computes as expressions of a loop's variables: multiples of an `arange`.

They overflow where eager's do and nowhere else, and are rounded to each data type in between.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_inductor import compiler

long = torch.int64
arange = torch.arange

Program = Callable[[torch.Tensor], torch.Tensor]

WIDE: dict[str, Program] = {
    "product": lambda x: arange(8) * 1_000_000_000 + x[:8],
    "cumsum": lambda x: torch.ones(9, dtype=long).cumsum(0) * 1_000_000_000,
    "start": lambda x: arange(-5, 5) * 700_000_000,
    "reversed": lambda x: arange(10, 0, -1) * -500_000_000,
    "offset": lambda x: arange(x.shape[0]) * 10**9 + 17 * 10**17,
    "float": lambda x: arange(8) * 10**9 * 1.0,
    "above": lambda x: arange(8) * (2**31 + 5) - 3,
    "size": lambda x: arange(20) * (x.shape[0] * 100_000_000),
    "two": lambda x: arange(5)[:, None] * 10**9 + arange(33) * 10**9,
    "square": lambda x: arange(70_000) * arange(70_000),
    "difference": lambda x: -(arange(8) * 2_000_000_000) - arange(8) * 2_000_000_000,
    "shift": lambda x: (arange(8) * 2**30) >> 1,
    "comparison": lambda x: arange(8) * 2**30 > 2**31,
    "equality": lambda x: arange(8) * 2**30 == x[:8] + 2**31,
    "floor": lambda x: (arange(8) * -(2**30)) // 3,
    "remainder": lambda x: (arange(8) * -(2**30)) % 1_000_007,
    "chosen": lambda x: torch.where(arange(8) * 2**30 > 5, arange(8) * 2**30, x[:8]),
    "picked": lambda x: (arange(100) * 10**9)[x[:8] + 50],
    "sum": lambda x: (arange(64) * 10**9).sum(),
    "sums": lambda x: (arange(64) * 10**9).cumsum(0),
}
"""Multiples that 32 bits do not hold."""

WRAPPED: dict[str, Program] = {
    "int32": lambda x: (arange(8, dtype=torch.int32) * 10**9) // 7,
    "least": lambda x: torch.minimum(arange(8, dtype=torch.int32) * 10**9, x[:8].int()),
    "int16": lambda x: (arange(300, dtype=torch.int16) * 200).float(),
    "absolute": lambda x: (arange(8, dtype=torch.int32) * 2**28 - 2**31).abs() // 2,
    "uint8": lambda x: arange(300).to(torch.uint8).to(long),
    "int8": lambda x: arange(300).to(torch.int8).to(long) * 2,
    "negated": lambda x: (-arange(20, dtype=torch.uint8)).to(long),
    "bool": lambda x: arange(20).bool().to(long),
    "bools": lambda x: arange(20).bool() * arange(20) + arange(20).bool(),
    "int64": lambda x: (arange(20) * 10**18) // 10**17,
    "beyond": lambda x: arange(20) * 10**18 * 10**3 + (arange(20) + 2**62) + 2**62,
    "larger": lambda x: torch.maximum(arange(20) * 2**62, arange(20)),
}
"""Multiples that the data type does not hold."""

ROUNDED: dict[str, Program] = {
    "float32": lambda x: (arange(64) + 10**9).float() - 1e9,
    "back": lambda x: (arange(64) + 10**9).float().to(long),
    "float64": lambda x: (arange(64) + 2**60).double().to(long),
    "half": lambda x: arange(5000).half().to(long),
    "bfloat16": lambda x: arange(5000).bfloat16().float(),
    "squared": lambda x: (arange(64) + 2**24).float() ** 2,
    "zero": lambda x: 1 / -arange(8).float(),
    "zeros": lambda x: 1 / (arange(8).float() * (arange(8) - 20).float()),
}
"""Whole numbers that a data type rounds, and zeros that have a sign."""


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("programs", [WIDE, WRAPPED, ROUNDED], ids=["wide", "wrapped", "rounded"])
def test_equal_eager(fusing: Any, programs: dict[str, Program], dynamic: bool) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [each(x) for each in programs.values()]

    compiled = fusing(program, {"minimum": 1}, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        for size in (100, 57) if dynamic else (100,):
            x = torch.zeros(size, dtype=long)
            found = dict(zip(programs, compiled(x), strict=True))
            for name, expected in zip(programs, program(x), strict=True):
                assert found[name].dtype == expected.dtype, name
                assert torch.equal(found[name], expected), name


def test_indices_are_places(fusing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    own = compiler.with_wide_steps
    monkeypatch.setattr(compiler, "with_wide_steps", lambda text: own(texts.append(text) or text))

    def program(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return x[n - 1 - arange(n)] * 2 + x[(arange(n) + 1).int() - 1]

    for dynamic in (False, True):
        compiled = fusing(program, {"minimum": 1}, dynamic=dynamic)
        for n in (40, 33) if dynamic else (40,):
            x = torch.randn(n, 3)
            assert torch.equal(compiled(x), program(x))
    assert texts
    assert not any("index out of bounds" in text for text in texts)


def test_torch_compile_is_left_as_it_is(fusing: Any) -> None:
    from torch._inductor.index_propagation import IndexPropagation

    own = IndexPropagation.propagate_sympy
    assert fusing(lambda x: x + arange(3) * 2, {"minimum": 1})(torch.zeros(3)).tolist() == [0, 2, 4]
    assert IndexPropagation.propagate_sympy is own
