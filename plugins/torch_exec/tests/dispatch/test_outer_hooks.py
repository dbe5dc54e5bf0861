"""Hooks that Dynamo must not capture run around a jitted module's program."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import differences
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.linear(x).relu() * scale


def net() -> Net:
    torch.manual_seed(0)
    return Net()


Jit = Callable[[Any], Any]
X = torch.linspace(-1, 1, 6).reshape(2, 3)


def both(program: Callable[[Jit, list[Any]], Any]) -> Any:
    """The jitted module that ``program`` returns; what it does is as in eager, with no warning."""
    found: list[list[Any]] = []
    made: list[Any] = []
    for jit in (lambda module: module, tj.jit):
        seen: list[Any] = []
        with warnings.catch_warnings():
            warnings.simplefilter("error", tj.TjWarning)
            made.append(program(jit, seen))
        found.append(seen)
    assert not differences(found[0], found[1])
    return made[1]


@torch.compiler.disable
def doubled_input(module: Any, args: tuple[Any, ...]) -> Any:
    return args[0] * 2


@torch.compiler.disable
def shifted_result(module: Any, args: Any, result: torch.Tensor) -> torch.Tensor:
    return result + args[0].sum()


def test_arguments_and_results_pass_through_hooks() -> None:
    def program(jit: Jit, seen: list[Any]) -> Any:
        module = jit(net())
        module.register_forward_pre_hook(doubled_input)
        module.register_forward_hook(shifted_result)
        for _ in range(3):
            out = module(X, 3.0)
            out.sum().backward()
            seen += [out.detach(), module.linear.weight.grad.clone()]
        return module

    stats = tj.stats(both(program))
    assert stats.entries == 1
    assert stats.hits == 2


def test_hooks_with_keywords_in_order() -> None:
    def program(jit: Jit, seen: list[Any]) -> Any:
        module = jit(net())

        @torch.compiler.disable
        def before(called: Any, args: Any, kwargs: Any) -> Any:
            seen.append(("before", called is module, len(args), sorted(kwargs)))
            return args, {"scale": 2.0}

        @torch.compiler.disable
        def first(called: Any, args: Any) -> None:
            seen.append("first")

        @torch.compiler.disable
        def after(called: Any, args: Any, kwargs: Any, result: Any) -> None:
            seen.append(("after", called is module, dict(kwargs)))

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_pre_hook(first, prepend=True)
        module.register_forward_hook(after, with_kwargs=True)
        for _ in range(2):
            seen.append(module(X, scale=1.0).detach())
        return module

    both(program)


def test_hooks_that_come_and_go() -> None:
    def program(jit: Jit, seen: list[Any]) -> Any:
        module = jit(net())
        seen.append(module(X).detach())
        handle = module.register_forward_pre_hook(doubled_input)
        seen.append(module(X).detach())
        handle.remove()
        seen.append(module(X).detach())
        module.register_forward_hook(shifted_result)
        seen.append(module(X).detach())
        return module

    assert tj.stats(both(program)).entries == 2


def test_bad_hook_raises_as_in_eager() -> None:
    @torch.compiler.disable
    def bad(called: Any, args: Any, kwargs: Any) -> Any:
        return 3

    module = tj.jit(net())
    module.register_forward_pre_hook(bad, with_kwargs=True)
    with pytest.raises(RuntimeError, match="forward pre-hook must return None or a tuple"):
        module(X)


def test_changed_forward_is_noticed() -> None:
    def program(jit: Jit, seen: list[Any]) -> Any:
        module = jit(net())
        module.register_forward_hook(shifted_result)
        seen.append(module(X).detach())
        module.forward = lambda x: x * 3
        seen.append(module(X).detach())
        return module

    both(program)


def test_captured_hooks_beside_others_break_the_graph() -> None:
    def program(jit: Jit, seen: list[Any]) -> Any:
        module = jit(net())
        module.register_forward_pre_hook(doubled_input)
        module.register_forward_hook(lambda called, args, result: result - 1)
        seen += [module(X).detach() for _ in range(2)]
        return module

    (fallback,) = tj.stats(both(program)).fallbacks
    assert "graph break" in fallback.reason
