"""Calls that PyTorch refuses and Inductor's kernels take: they raise in a fused program, too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

SHORTS = torch.arange(1, 4, dtype=torch.int16)
HALVES, FLOATS = SHORTS.half(), SHORTS.float()
SOME = torch.tensor([True, False, True])
FIRST = torch.tensor([0])

REFUSED: dict[str, Callable[..., Any]] = {
    "where": lambda: torch.where(SOME, SHORTS, 2**15),
    "where, other": lambda: torch.where(SOME, 2**33, SHORTS),
    "where, float": lambda: torch.where(SOME, FLOATS, 1e39),
    "full": lambda: torch.full((3,), 2**33, dtype=torch.int16) + SHORTS,
    "full, half": lambda: torch.full((3,), 1e5, dtype=torch.float16) + HALVES,
    "full_like": lambda: torch.full_like(SHORTS, 1e5) + SHORTS,
    "new_full": lambda: SHORTS.new_full((3,), math.inf) + SHORTS,
    "fill_": lambda: SHORTS.clone().fill_(2**33) + SHORTS,
    "masked_fill": lambda: SHORTS.masked_fill(SOME, 2**15),
    "index_fill": lambda: SHORTS.index_fill(0, FIRST, 2**15),
    "scatter": lambda: SHORTS.scatter(0, FIRST, 2**15),
    "pad": lambda: functional.pad(SHORTS.to(torch.uint8), (1, 1), value=-3),
    "threshold": lambda: functional.threshold(SHORTS, 1, math.nan),
    "factor": lambda: torch.add(SHORTS, SHORTS, alpha=2**15),
    "factor of a product": lambda: torch.addcmul(SHORTS, SHORTS, SHORTS, value=2**15),
    "negative power": lambda: SHORTS**-3,
    "truth as a factor": lambda: torch.add(SHORTS, SHORTS, alpha=True),
    "truth minus numbers": lambda: torch.rsub(SHORTS, True),
    # Data types that the kernel does not have, or not together.
    "bits of a float": lambda: SHORTS & 2.5,
    "elements of another type": lambda: SHORTS.index_put((FIRST,), torch.tensor([3])),
    "matrix of another type": lambda: torch.mv(FLOATS.double().view(1, 3), FLOATS),
    "sum of a matrix of truths": lambda: torch.mv(SOME.view(1, 3), SOME),
}


def error(program: Callable[[], Any]) -> str:
    """The text of what ``program`` raises; a test that nothing raises fails here."""
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        program()
    return str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses(fusing: Any, name: str) -> None:
    program = REFUSED[name]
    assert error(fusing(program, {"minimum": 1})) == error(program)


def test_a_number_that_changes(fusing: Any) -> None:
    def program(number: int) -> torch.Tensor:
        return SHORTS.masked_fill(SOME, number)

    compiled = fusing(program, {"minimum": 1})
    for number in (3, 5, 7):
        assert torch.equal(compiled(number), program(number))
    assert error(lambda: compiled(2**33)) == error(lambda: program(2**33))


def test_a_number_that_changes_becomes_a_bool(fusing: Any) -> None:
    def program(number: int) -> list[torch.Tensor]:
        count = SOME.sum()
        made = [torch.full((3,), number, dtype=torch.bool), torch.full_like(SOME, number)]
        made += [SOME.new_full((3,), number), SOME.clone().fill_(number)]
        return [x + count for x in made]

    compiled = fusing(program)
    for number in (1, 0, 2, -3):
        for mine, eager in zip(compiled(number), program(number), strict=True):
            assert torch.equal(mine, eager)


def test_exponents_of_doubles_are_not_fused(fusing: Any) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mantissa, exponent = torch.frexp(x)
        return exponent * 300, mantissa + 1

    x = torch.randn(4, 8, dtype=torch.float64)
    for mine, eager in zip(fusing(program)(x), program(x), strict=True):
        assert torch.equal(mine, eager)


@pytest.mark.parametrize("bound", [5, 2**15, -(2**20), 2**40])
@pytest.mark.parametrize(
    "clamped",
    [
        lambda x, n: x.clamp(max=n),
        lambda x, n: x.clamp(min=n),
        lambda x, n: x.clamp(-abs(n), abs(n)),
        lambda x, n: functional.hardtanh(x, -abs(n), abs(n)),
    ],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_bounds_that_a_type_does_not_hold(
    fusing: Any, clamped: Callable[..., torch.Tensor], bound: int, symbolic: bool
) -> None:
    """PyTorch's kernel raises, or from 2.15 on takes the nearest number that the type holds."""

    def outcome(program: Callable[..., torch.Tensor]) -> str:
        try:
            results = [program(SHORTS, n) for n in (3, bound)] if symbolic else [program(SHORTS)]
        except RuntimeError as caught:
            return str(caught)
        return str([(x.dtype, x.tolist()) for x in results])

    def program(x: torch.Tensor, n: int = bound) -> torch.Tensor:
        return clamped(x, n) + x

    assert outcome(fusing(program, {"minimum": 1})) == outcome(program)
