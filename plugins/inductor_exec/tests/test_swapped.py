"""Copies of arguments that a region overwrites, written to other arguments: the old values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

T = torch.Tensor
Copy = Callable[[T], T]

COPIES: dict[str, Copy] = {
    "clone": lambda p: p.clone(),
    "clone of a clone": lambda p: p.clone().clone(),
    "detached": lambda p: p.detach().clone(),
    "copied": lambda p: torch.empty_like(p).copy_(p),
    "transposed": lambda p: p.t().clone(),
    "row": lambda p: p[1:2].clone().expand(p.shape[0], -1),
    "rolled": lambda p: p.roll(1, 0),
    "flipped": lambda p: p.flip(0),
    "joined": lambda p: torch.cat([p[1:], p[:1]]),
    "gathered": lambda p: p[torch.arange(p.shape[0])],
    "zero added": lambda p: p + 0,
    "other type": lambda p: p.double().float(),
}


def swapped(copy: Copy, p: T, g: T, h: T) -> Any:
    old = copy(p)
    p.copy_(g * 0.5)
    g.copy_(old)


def returned(copy: Copy, p: T, g: T, h: T) -> Any:
    old = copy(p)
    p.copy_(g * 0.5)
    return old


def twice_from_the_old(copy: Copy, p: T, g: T, h: T) -> Any:
    old = copy(p)
    p.add_(g)
    g.copy_(old)
    h.copy_(old * 2)


def both_old(copy: Copy, p: T, g: T, h: T) -> Any:
    first, second = copy(p), copy(g)
    p.copy_(second)
    g.copy_(first)
    h.add_(1)


def old_and_new(copy: Copy, p: T, g: T, h: T) -> Any:
    old = copy(p)
    p.mul_(g)
    h.copy_(p)
    g.copy_(old)


def one_after_another(copy: Copy, p: T, g: T, h: T) -> Any:
    g.copy_(copy(p))
    p.copy_(copy(h))
    h.copy_(copy(g))


PROGRAMS = (swapped, returned, twice_from_the_old, both_old, old_and_new, one_after_another)
PAIRS = [
    pytest.param(copy, f, id=f"{name}-{f.__name__}")
    for (name, copy), f in itertools.product(COPIES.items(), PROGRAMS)
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("copy", "f"), PAIRS)
def test_old_values_are_copied(copy: Copy, f: Callable[..., Any], fusing: Any) -> None:
    _compare(copy, f, fusing)


def test_two_arguments_are_swapped(fusing: Any) -> None:
    """Inductor takes the copy for the argument itself, which has been overwritten by then."""
    _compare(COPIES["clone"], swapped, fusing)


def _compare(copy: Copy, f: Callable[..., Any], fusing: Any) -> None:
    given = [torch.randn(5, 5) for _ in range(3)]
    mine = [x.clone() for x in given]
    wanted = f(copy, *given)
    found = fusing(lambda *args: f(copy, *args))(*mine)
    torch.testing.assert_close((found, mine), (wanted, given))
    assert [x._version for x in mine] == [x._version for x in given]
