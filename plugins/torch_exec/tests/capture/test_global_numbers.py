"""Whole numbers of globals that differ between calls: two programs serve all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

X = torch.arange(3.0)
CALLS = 12
"""More calls than programs are compiled for values of one object."""


class Meter:
    def __init__(self) -> None:
        self.total, self.count, self.average = 0.0, 0, 0.0

    def update(self, value: float, n: int = 1) -> None:
        self.total += value * n
        self.count += n
        self.average = self.total / self.count


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


METER, MODULE, COUNTS, ROWS, STEP = Meter(), Counting(), {"n": 0}, [3], 0
WIDTH = 4


def a_meter(x: torch.Tensor) -> Any:
    loss = x.sum()
    METER.update(loss.item(), x.shape[0])
    return loss, METER.average


def a_module(x: torch.Tensor) -> Any:
    return MODULE(x), MODULE.calls


def a_dict(x: torch.Tensor) -> Any:
    COUNTS["n"] += 1
    return x * COUNTS["n"]


def a_list(x: torch.Tensor) -> Any:
    ROWS[0] += 1
    return x.new_zeros(ROWS[0], 2), ROWS[0] % 4


def a_name(x: torch.Tensor) -> Any:
    global STEP
    STEP += 1
    return x * STEP if STEP > 3 else x


def values(f: Callable[..., Any]) -> list[Any]:
    reset()
    return [f(X) for _ in range(CALLS)]


def reset() -> None:
    global STEP
    STEP = COUNTS["n"] = 0
    ROWS[0], MODULE.calls = 3, 2
    METER.__init__()  # type: ignore[misc]


def plain(found: Any) -> Any:
    if isinstance(found, list | tuple):
        return type(found), [plain(each) for each in found]
    return found.tolist() if isinstance(found, torch.Tensor) else found


@pytest.mark.parametrize(
    "program", [a_meter, a_module, a_dict, a_list, a_name], ids=lambda f: f.__name__
)
def test_one_program_for_all_values(program: Callable[..., Any]) -> None:
    f = tj.jit(program)
    assert plain(values(f)) == plain(values(program))
    found = tj.stats(f)
    assert found.entries <= 4
    assert not found.fallbacks


def test_a_constant_is_no_symbol() -> None:
    def program(x: torch.Tensor) -> Any:
        return x.new_ones(WIDTH) * x.sum()

    f = tj.jit(program, dynamic=True)
    assert f(X).shape == (4,)
    assert "WIDTH == 4" in str(tj.guards(f))


def test_a_fixed_number_of_each_call() -> None:
    f = tj.jit(a_dict, dynamic=False)
    with pytest.warns(tj.TjWarning, match="8 programs were compiled"):
        found = values(f)
    assert plain(found) == plain(values(a_dict))
