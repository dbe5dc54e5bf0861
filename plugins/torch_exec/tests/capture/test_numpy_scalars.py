"""NumPy scalars in programs: PyTorch takes them as numbers, Dynamo as tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tj_core as tj
import torch
from torch._higher_order_ops.wrap import wrap

pytestmark = [
    pytest.mark.filterwarnings("ignore:tj. .*:tj_core.TjWarning"),
    pytest.mark.filterwarnings("ignore:To copy construct from a tensor"),  # of Dynamo's own calls
]

WRAPS: dict[str, Callable[[Any], Any]] = {
    "jit": tj.jit,
    "dynamic": lambda f: tj.jit(f, dynamic=True),
    "backend": lambda f: torch.compile(f, backend="tj"),
}
INT, SHORT, LARGE = np.int64(2), np.int32(2), np.int64(300)
DOUBLE, SINGLE, ROUNDED = np.float64(1.5), np.float32(1.5), np.float64(1.1)
SIZE = torch.tensor(6)

CAPTURED: dict[str, Callable[[torch.Tensor], Any]] = {
    "reshape": lambda x: x.reshape(np.int64(6)) * 2,
    "reshape of two": lambda x: x.reshape(np.int64(3), -1) * 2,
    "reshape by a global": lambda x: x.reshape(INT, -1) * 2,
    "reshape by a tensor": lambda x: x.reshape(SIZE) * 2,
    "reshape by a new tensor": lambda x: x.reshape(torch.tensor(6)) * 2,
    "view": lambda x: x.view(np.int64(6)) * 2,
    "expand": lambda x: x[0, 0].expand(np.int64(3)) * 2,
    "sum": lambda x: x.sum(np.int64(0)),
    "sum by name": lambda x: x.sum(dim=np.int64(0)),
    "index": lambda x: x[np.int64(1)] * 2,
    "softmax": lambda x: torch.softmax(x.float(), np.int64(1)),
    "sum of ints": lambda x: x + np.int64(3),
    "sum of a global": lambda x: x + INT,
    "product of singles": lambda x: x.float() * SINGLE,
    "product of doubles": lambda x: x.double() * ROUNDED,
    "quotient": lambda x: x.half() / np.float32(1.5),
    "large": lambda x: x.to(torch.int16) + LARGE,
    "in a region": lambda x: wrap(lambda y: y.float() + SINGLE, x),
    "of bools": lambda x: (x > 2) + LARGE,
}
EAGER: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum of a double": lambda x: x + DOUBLE,
    "double made inside": lambda x: x + np.float64(1.5),
    "half": lambda x: x.half() * ROUNDED,
    "short of bools": lambda x: (x > 2) + SHORT,
    "full": lambda x: torch.full((2,), np.int64(3)) + x.sum(),
    "full of a global": lambda x: torch.full((2,), INT) + x.sum(),
    "tensor": lambda x: torch.tensor(DOUBLE) + x.sum(),
    "new_tensor": lambda x: x.new_tensor(DOUBLE),
    "in a region, of a double": lambda x: wrap(lambda y: y + DOUBLE, x),
    "left": lambda x: np.float64(1.5) * x,
}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.sampled(12)
@pytest.mark.parametrize("how", WRAPS)
@pytest.mark.parametrize("name", [*CAPTURED, *EAGER])
def test_scalars_are_numbers(name: str, how: str) -> None:
    f = (CAPTURED | EAGER)[name]
    x = torch.arange(6).view(2, 3)
    got, expected = WRAPS[how](f)(x), f(x)
    assert got.dtype is expected.dtype
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", CAPTURED)
def test_what_is_the_same_of_a_number_is_captured(name: str) -> None:
    jitted = tj.jit(CAPTURED[name])
    jitted(torch.arange(6).view(2, 3))
    assert tj.stats(jitted).fallbacks == ()


def test_another_value_of_a_scalar() -> None:
    def f(x: torch.Tensor, n: Any) -> torch.Tensor:
        return x.reshape(n, -1) * n

    jitted = tj.jit(f, dynamic=True, check=2)
    for n in (2, 3, 6):
        x = torch.arange(6)
        torch.testing.assert_close(jitted(x, np.int64(n)), f(x, np.int64(n)))


TYPES: dict[str, Callable[[Any], bool]] = {
    "float": lambda n: isinstance(n, float),
    "array": lambda n: isinstance(n, np.ndarray),
    "scalar": lambda n: isinstance(n, np.generic),
    "number": lambda n: isinstance(n, int | float),
    "tensor": lambda n: isinstance(n, torch.Tensor),
    "type": lambda n: type(n) is float,
    "type of NumPy": lambda n: type(n) is np.float64,
    "class": lambda n: n.__class__ is np.float64,
    "method of a float": lambda n: hasattr(n, "is_integer"),
    "method of an array": lambda n: hasattr(n, "astype") and hasattr(n, "fill"),
    "method of a tensor": lambda n: hasattr(n, "requires_grad"),
}


@pytest.mark.parametrize("asks", TYPES.values(), ids=TYPES)
def test_types_of_scalars_and_arrays(asks: Callable[[Any], bool]) -> None:
    def f(x: torch.Tensor, n: Any) -> torch.Tensor:
        return x * 2 if asks(n) else x * 3

    jitted, x = tj.jit(f), torch.arange(3.0)
    for n in (np.float64(1.5), np.array(1.5), np.float32(1.5), np.ones(2), 1.5, np.int64(2)):
        assert torch.equal(jitted(x, n), f(x, n)), type(n)


def test_a_power_by_a_scalar() -> None:
    def f(x: torch.Tensor, n: Any) -> torch.Tensor:
        return x**n

    torch.manual_seed(0)
    jitted, x = tj.jit(f), torch.rand(1000)
    for n in (0.5, 3.0, -0.5, 1.25):
        assert torch.equal(jitted(x, np.float64(n)), f(x, np.float64(n)))
