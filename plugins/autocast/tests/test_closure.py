"""One program that reads its data types, compiled in every way and called under every transform."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.case import Case
from tj_suites.autocast.case import evaluate
from torch.utils.checkpoint import checkpoint

Program = Callable[..., Any]


def base(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    z = y * 2 if y.dtype is torch.bfloat16 else y * 3
    return z + x


def bf16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def nested_off(f: Program) -> Program:
    def g(x, w):
        with torch.autocast("cpu", enabled=False):
            y = f(x, w)
        return y, f(x, w)

    return g


AROUND: dict[str, Callable[[Program], Program]] = {
    "plain": lambda f: f,
    "nested off": nested_off,
    "twice": lambda f: lambda x, w: f(f(x, w).float(), w),
    "checkpoint": lambda f: lambda x, w: checkpoint(f, x, w, use_reentrant=False),
    "written": lambda f: lambda x, w: (x.mul_(2), f(x, w))[1],
    "no grad": lambda f: torch.no_grad()(f),
}


def ways(f: Program) -> dict[str, tuple[Program, Any, dict[str, Any]]]:
    """Ways to enter autocast, by name: the program, the context of its calls, options."""
    return {
        "region": (bf16()(f), contextlib.nullcontext, {}),
        "ambient": (f, bf16, {}),
        "option": (f, contextlib.nullcontext, {"autocast": torch.bfloat16}),
    }


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("way", ["region", "ambient", "option"])
@pytest.mark.parametrize("around", AROUND)
def test_the_closure(around: str, way: str, dynamic: bool | None) -> None:
    program, outside, options = ways(AROUND[around](base))[way]

    def make() -> Any:
        torch.manual_seed(0)
        return program, (torch.randn(3, 3), torch.randn(3, 3, requires_grad=True))

    more = {**options, "dynamic": dynamic}
    verdict = evaluate(Case(around, make, outside, tuple(more.items())), tj.jit)
    assert not verdict.differences, str(verdict)
    assert not verdict.fallbacks
    assert not verdict.left
