"""Context managers made by ``contextlib.contextmanager``, in programs of every PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch

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
