"""Numbers that are symbols: programs that compute with them, and their methods called by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.ops.sizes.shape_env import RunSymbols, SymbolFacts

pytestmark = pytest.mark.sampled(16)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


NUMERIC: dict[str, Callable[..., Any]] = {
    "bits": lambda x, n: x * ((n | 3) ^ (n & 5)) + (n << 1 | 1),
    "size": lambda x, n: x * ((x.size(0) | (n >> 1)) * 4),
    "abs": lambda x, n: x * abs(n) + abs(n - 9),
    "shape": lambda x, n: x.new_zeros(abs(n) | 1) + x.sum(),
    "sum": lambda x, n: x * sum([n, True, x.size(0)]),
}


@pytest.mark.parametrize("name", NUMERIC)
def test_numbers_that_are_symbols(name: str) -> None:
    f = NUMERIC[name]
    jitted = tj.jit(f, dynamic=True)
    for n in (5, -3, 12):
        x = torch.rand(7)
        torch.testing.assert_close(jitted(x, n), f(x, n))
    assert tj.stats(jitted).fallbacks == ()


METHODS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, n: x * int.__add__(n, 1),
    "difference": lambda x, n: x * int.__rsub__(n, x.size(0)),
    "size": lambda x, n: x.new_zeros(int.__mul__(x.size(0), 2)) + n,
    "constants": lambda x, n: x * int.__add__(4, 1) + n,
    "class of a number": lambda x, n: x * type(n).__mul__(n, n),
    "mapped": lambda x, n: x * sum(map(int.__add__, (n, 2), (3, n))),
    "bound": lambda x, n: x * n.__add__(1),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_are_called_by_their_names(name: str) -> None:
    f = METHODS[name]
    jitted = tj.jit(f, dynamic=True)
    for n in (5, -3, 12):
        x = torch.rand(7)
        torch.testing.assert_close(jitted(x, n), f(x, n))
    assert tj.stats(jitted).fallbacks == ()


OTHERS: dict[str, Callable[..., Any]] = {
    "another type": lambda x, n: (x + 1, int.__add__(n, 0.5)),
    "another type, bound": lambda x, n: (x + 1, n.__add__(0.5)),
    "a method of the class": lambda x, n: (x + 1, float.__ror__(type(n)) == int | float),
    "a pair": lambda x, n: (x + 1, int.__divmod__(n, 4)),
}


@pytest.mark.filterwarnings("ignore:tj:UserWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_other_methods_are_pythons(name: str) -> None:
    f = OTHERS[name]
    jitted = tj.jit(f, strict=False)
    for n in (5, -3):  # a constant, then a symbol
        found, number = jitted(torch.ones(2), n)
        assert number == f(torch.ones(2), n)[1]
        assert torch.equal(found, torch.full((2,), 2.0))


def test_sizes_are_computed_in_numbers_and_in_sympy_alike() -> None:
    from tj_core.ir.sizes import NUMBERS
    from tj_torch.ops.sizes.shape_env import _algebra

    assert set(NUMBERS) <= set(_algebra())


def test_a_float_whose_hint_is_whole() -> None:
    run = RunSymbols([SymbolFacts("s0")], {"s0": 3})
    number = run.number("2*s0", "float")
    assert isinstance(number, torch.SymFloat)
    assert number.node.hint == 6.0
