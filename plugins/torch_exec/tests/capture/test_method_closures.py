"""Methods of objects that a program makes write what they close over, in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

X = torch.arange(1.0, 4.0)


class State:
    """An object that programs change."""

    count = 0


Given = tuple[Callable[[torch.Tensor], Any], Callable[[], Any]]
"""A program, and what is seen after each call."""


def a_list() -> Given:
    log: list[int] = []

    class Made:
        def method(self) -> int:
            log.append(len(log))
            return 2

    return lambda x: x * Made().method(), lambda: list(log)


def an_object() -> Given:
    state = State()

    class Made:
        def __init__(self) -> None:
            state.count += 1

    def f(x: torch.Tensor) -> torch.Tensor:
        Made()
        return x * 2

    return f, lambda: state.count


def a_default() -> Given:
    class Made:
        def method(self, seen: list[int] = []) -> int:  # noqa: B006
            seen.append(1)
            return len(seen)

    return lambda x: x * Made().method(), lambda: len(Made.method.__defaults__[0])


def a_context() -> Given:
    log: list[int] = []

    class Made:
        def __enter__(self) -> None:
            log.append(1)

        def __exit__(self, *args: object) -> None:
            log.append(2)

    def f(x: torch.Tensor) -> torch.Tensor:
        with Made():
            return x * 2

    return f, lambda: list(log)


@pytest.mark.parametrize("program", [a_list, an_object, a_default, a_context])
@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_what_methods_close_over_is_written(program: Callable[[], Given]) -> None:
    def seen(jit: Callable[..., Any]) -> list[Any]:
        f, look = program()
        f = jit(f)
        return [(f(X), look()) for _ in range(3)]

    torch.testing.assert_close(seen(tj.jit), seen(lambda f: f))


def test_methods_that_hold_no_state_are_captured() -> None:
    scale = 2.0

    class Made:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def method(self) -> torch.Tensor:
            return self.x * scale

    f = tj.jit(lambda x: Made(x).method())
    torch.testing.assert_close(f(X), X * 2)
    assert not tj.stats(f).fallbacks
