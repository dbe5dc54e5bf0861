"""Tensors that a program makes: by calls of classes, on a default device, seen by modes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from torch.overrides import TorchFunctionMode


def test_tensors_of_a_size() -> None:
    """A graph would have a tuple for the size, and a tensor of its items."""

    def f(x: torch.Tensor) -> Any:
        made = torch.Tensor(x.size())
        return x * 2, made.shape, torch.FloatTensor(x.shape[:1]).shape, torch.Tensor((2, 3))

    jitted = tj.jit(f)
    for n in (3, 4, 5):
        x = torch.ones(n, 2)
        got, expected = jitted(x), f(x)
        assert got[1:3] == expected[1:3]
        torch.testing.assert_close((got[0], got[3]), (expected[0], expected[3]))
    assert not tj.stats(jitted).fallbacks


class Doubled(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return made * 2 if func in (torch.arange, torch.full, torch.ones, torch.tensor) else made


MADE: dict[str, Callable[[], torch.Tensor]] = {
    "arange": lambda: torch.arange(3),
    "empty": lambda: torch.empty(3),
    "eye": lambda: torch.eye(3),
    "full": lambda: torch.full((3,), 2),
    "hann_window": lambda: torch.hann_window(3),
    "linspace": lambda: torch.linspace(0, 1, 3),
    "ones": lambda: torch.ones(3),
    "rand": lambda: torch.rand(3),
    "randint": lambda: torch.randint(4, (3,)),
    "randperm": lambda: torch.randperm(3),
    "scalar_tensor": lambda: torch.scalar_tensor(2),
    "tensor": lambda: torch.tensor([1, 2]),
    "zeros": lambda: torch.zeros(3),
}


@pytest.mark.probe
@pytest.mark.parametrize("how", ["with", "set"])
@pytest.mark.parametrize("name", MADE)
def test_tensors_are_made_on_the_default_device(name: str, how: str) -> None:
    """PyTorch 2.11 captures some of them on the CPU, and makes them on the device."""
    f = MADE[name]
    g = tj.jit(f)
    try:
        with torch.device("meta") if how == "with" else contextlib.nullcontext():
            if how == "set":
                torch.set_default_device("meta")
            expected, made = f(), g()
    finally:
        torch.set_default_device(None)
    assert (made.device, made.dtype, made.shape) == (
        expected.device,
        expected.dtype,
        expected.shape,
    )
    assert tj.stats(g).fallbacks == ()
    assert "cpu" not in str(tj.last_trace(g))
    assert g().device == f().device


@pytest.mark.probe
@pytest.mark.parametrize("name", ["arange", "full", "ones", "tensor"])
def test_a_mode_sees_functions_that_make_tensors(name: str) -> None:
    made = MADE[name]

    def f(x: torch.Tensor) -> torch.Tensor:
        with Doubled():
            y = x + made()
        return y

    g, x = tj.jit(f), torch.ones(3) if name != "tensor" else torch.ones(2)
    for _ in range(3):
        torch.testing.assert_close(g(x), f(x), rtol=0, atol=0)
