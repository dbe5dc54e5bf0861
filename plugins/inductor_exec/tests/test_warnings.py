"""Warnings of PyTorch's kernels: a program that fuses gives them in each call, as eager does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all": lambda x: x[:1, 0].var() * 2 + x.sum(),
    "std": lambda x: x.std(0) * 2,
    "var_mean": lambda x: torch.var_mean(x, 0)[0] * 2,
    "std_mean": lambda x: torch.std_mean(x, (0,), keepdim=True)[1] * 2,
    "correction": lambda x: torch.var(x, 1, correction=3) * 2,
    "none": lambda x: torch.var(x, 0, correction=0) * 2,
}


def heard(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = f(x)
    return [str(w.message) for w in caught], result


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_degrees_of_freedom(name: str, dynamic: bool | None, fusing: Any) -> None:
    f = PROGRAMS[name]
    jitted = fusing(f, {"minimum": 1}, dynamic=dynamic)
    for rows in (5, 1, 4, 1):
        x = torch.randn(rows, 3)
        heard(jitted, x)  # a first call of an entry may run more than once
        said, found = heard(jitted, x)
        wanted, expected = heard(f, x)
        assert said == wanted
        torch.testing.assert_close(found, expected, equal_nan=True)
