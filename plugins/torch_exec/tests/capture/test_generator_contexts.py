"""Context managers made by ``contextlib.contextmanager``, in programs of every PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from torch.overrides import TorchFunctionMode

pytestmark = pytest.mark.probe  # Dynamo follows `contextlib` otherwise in each release


@contextlib.contextmanager
def bare() -> Iterator[None]:
    yield


@contextlib.contextmanager
def documented() -> Iterator[int]:
    """Clean up after the block."""
    try:
        yield 3
    finally:
        LEFT.append(1)


@contextlib.contextmanager
def swallowing() -> Iterator[None]:
    with contextlib.suppress(ValueError):
        yield


@contextlib.contextmanager
def nested(x: torch.Tensor) -> Iterator[torch.Tensor]:
    with bare(), documented() as n:
        yield x * n


LEFT: list[int] = []


def one(x: torch.Tensor) -> Any:
    with bare():
        y = x + 1
    return y


def with_clean_up(x: torch.Tensor) -> Any:
    with documented() as n:
        y = x * n
    return y, len(LEFT)


def raising(x: torch.Tensor) -> Any:
    with swallowing():
        x = x + 1
        raise ValueError
    return x


def of_others(x: torch.Tensor) -> Any:
    with nested(x) as y, contextlib.nullcontext(2) as n:
        y = y - n
    return y


@bare()
def decorated(x: torch.Tensor) -> Any:
    return x.sin()


@pytest.mark.parametrize("f", [one, with_clean_up, raising, of_others, decorated])
def test_a_program_with_contexts_of_generators_is_captured_whole(f: Callable[..., Any]) -> None:
    g, x = tj.jit(f), torch.ones(3)
    for _ in range(3):
        LEFT.clear()
        expected, left = f(x), len(LEFT)
        LEFT.clear()
        torch.testing.assert_close(g(x), expected, rtol=0, atol=0)
        assert len(LEFT) == left
    assert tj.stats(g).fallbacks == ()
    assert tj.stats(g).misses == 1


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
