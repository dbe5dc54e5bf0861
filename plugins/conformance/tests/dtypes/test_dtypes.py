"""Programs of mixed data types: planted faults are found, and rounding is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tj_conformance.dtypes.arguments import DTYPES, LAYOUTS, Argument
from tj_conformance.dtypes.programs import programs
from tj_conformance.dtypes.running import compare
from tj_conformance.dtypes.shaking import Shaken

FLOATS = Argument("float32", (3, 17), "contiguous", 1, 0.3)
INTEGERS = Argument("int16", (3, 17), "transposed", 2, 0.3)


def program(a: torch.Tensor, b: torch.Tensor, k: Any) -> tuple[torch.Tensor, ...]:
    return a * b + k, a.cumsum(-1).exp(), b // 3


def found(change: Callable[..., Any], grad: bool = False) -> list[str]:
    """The differences that are seen if ``change`` changes the results of the program."""

    def jit(f: Any, **options: Any) -> Any:
        return lambda *args: change(*f(*args))

    given = (FLOATS, INTEGERS)
    return list(compare("plain", program, given, [2, -0.0], grad, jit=jit))


def test_nothing_is_found_in_eager() -> None:
    assert found(lambda *outs: outs) == []
    assert found(lambda *outs: outs, grad=True) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda a, b, c: (a.double(), b, c), "result 0: "),
        (lambda a, b, c: (a.mT.contiguous().mT, b, c), "strides"),
        (lambda a, b, c: (a, b, c + (c == 1)), "elements of torch.int16 differ"),
        (lambda a, b, c: (torch.where(a == 0, a.abs(), a), b, c), "0.0 instead of -0.0"),
        (lambda a, b, c: (a.nan_to_num(), b, c), "instead of nan"),
        (lambda a, b, c: (a * (1 + 1e-4), b, c), "result 0, values"),
        (lambda a, b, c: (a, a.view_as(a), c), "memory"),
        (lambda a, b, c: (a.long(), b, c // 0), "ZeroDivisionError"),
    ],
)
def test_a_planted_fault_is_found(change: Callable[..., Any], told: str) -> None:
    assert told in " ".join(found(change)) or (told == "ZeroDivisionError" and found(change))


def test_a_gradient_that_is_wrong_is_found() -> None:
    def hooked(*outs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outs[0].register_hook(lambda grad: grad * 1.01)
        return outs

    differences = found(hooked, grad=True)
    assert differences
    assert all("gradient 0" in told for told in differences)


def test_rounding_is_amplified_as_in_eager() -> None:
    """Rounding of the sums differs by as much as the exponential amplifies it."""
    given = (Argument("float32", (64,), "contiguous", 3, 0),)

    def amplified(a: torch.Tensor, k: float) -> tuple[torch.Tensor, ...]:
        return (((a * k).sum() * 3).exp(),)

    def jit(f: Any, **options: Any) -> Any:
        return lambda a, k: (((a * k).flip(0).sum() * 3 * (1 + 2e-7)).exp(),)

    assert list(compare("plain", amplified, given, [1.7], False, jit=jit)) == []


def test_values_are_shaken_by_their_last_place() -> None:
    x = torch.ones(100)
    with Shaken(0):
        product, copied, whole = x * 3, x.clone(), torch.ones(100, dtype=torch.int64) * 3
    assert 0 < (product - 3).abs().max() <= 3 * 4 * torch.finfo(torch.float32).eps
    assert torch.equal(copied, x)
    assert torch.equal(whole, torch.full((100,), 3))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_has_the_values(layout: str) -> None:
    for dtype in DTYPES:
        made = Argument(dtype, (2, 3, 4, 5), layout, 5, 0.5).make()
        assert made.shape == (2, 3, 4, 5)
        if layout not in ("expanded", "negative", "conjugate", "overlapping"):
            plain = Argument(dtype, (2, 3, 4, 5), "contiguous", 5, 0.5).make()
            assert made.dtype == plain.dtype
            assert torch.equal(made.isnan(), plain.isnan())
            assert torch.equal(made.nan_to_num(), plain.nan_to_num())


def test_a_seed_makes_the_same_programs() -> None:
    first, again = (list(map(str, programs(7, 12))) for _ in range(2))
    assert first == again
    assert len({*first}) == 12
