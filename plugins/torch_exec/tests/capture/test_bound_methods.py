"""Comparisons of bound methods, which Python makes anew where they are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tj_core as tj
import torch


class Widget:
    def press(self) -> None: ...

    def release(self) -> None: ...


ONE, OTHER = Widget(), Widget()
CALLBACK = ONE.press

COMPARISONS: tuple[Callable[[], bool], ...] = (
    lambda: ONE.press == CALLBACK,
    lambda: ONE.press != OTHER.press,
    lambda: ONE.press is ONE.press,
    lambda: ONE.press is OTHER.press,
    lambda: ONE.press in [ONE.release, CALLBACK],
)


@pytest.mark.parametrize("number", range(len(COMPARISONS)))
@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_bound_methods_compare_as_in_python(number: int) -> None:
    compare = COMPARISONS[number]

    def f(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        return x + 1, compare()

    assert tj.jit(f)(torch.ones(1))[1] is compare()


def test_one_read_is_one_method() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        press = ONE.press
        return x + 1 if press is press else x

    assert tj.jit(f, strict=True)(torch.ones(1)).tolist() == [2.0]
