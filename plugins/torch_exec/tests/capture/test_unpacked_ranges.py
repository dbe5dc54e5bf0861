"""Calls that unpack a range get its numbers."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import tj_core as tj
import torch

Place = namedtuple("Place", "first second third")


@dataclass
class Made:
    first: int
    second: int
    third: int


def weighted(first: int, second: int, third: int = 5) -> int:
    return first + 10 * second + 100 * third


PROGRAMS: dict[str, Callable[..., Any]] = {
    "function": lambda x, r: x * weighted(*r),
    "function, keyword": lambda x, r: x * weighted(*range(2), **{"third": r[1]}),
    "any number": lambda x, r: x * (lambda *given: given[1] * len(given))(*r),
    "builtin": lambda x, r: x * max(*r),
    "method": lambda x, r: x.new_ones(*r),
    "torch": lambda x, r: torch.zeros(*r) + x.sum(),
    "dimensions": lambda x, r: x.permute(*range(x.ndim)).sum(-1),
    "reversed": lambda x, r: x.permute(*range(x.ndim)[::-1]),
    "tuple": lambda x, r: x * Place(*r).second,
    "class": lambda x, r: x * Made(*r).second,
    "with others": lambda x, r: x * weighted(7, *range(r[0], r[0] + 2)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_range_gives_its_numbers(name: str) -> None:
    program = PROGRAMS[name]
    jitted = tj.jit(program)
    shapes = ((2, 3, 4), (2, 3), (5,))
    for shape, given in zip(shapes, (range(3), range(2, 5), range(4, 1, -1)), strict=True):
        x = torch.randn(shape)
        assert torch.equal(jitted(x, given), program(x, given))
    assert not tj.stats(jitted).fallbacks
