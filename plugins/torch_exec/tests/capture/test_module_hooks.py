"""Hooks of modules that are registered or removed between calls, and the guards of these."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.capture.dynamo import module_hooks
from torch import nn


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 3)), nn.Tanh())


def replaced(m: nn.Module) -> Any:
    """A dict in place of the module's own, and what sets the old one back."""
    before, m._forward_hooks = m._forward_hooks, OrderedDict({0: lambda m, x, y: y * 5})

    class Handle:
        def remove(self) -> None:
            m._forward_hooks = before

    return Handle()


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "forward": lambda m: m.register_forward_hook(lambda m, x, y: y * 2),
    "forward, keywords": lambda m: m.register_forward_hook(
        lambda m, x, k, y: y * 2, with_kwargs=True
    ),
    "before": lambda m: m.register_forward_pre_hook(lambda m, x: (x[0] * 2,)),
    "before, keywords": lambda m: m.register_forward_pre_hook(
        lambda m, x, k: ((x[0] * 2,), k), with_kwargs=True
    ),
    "backward": lambda m: m.register_full_backward_hook(lambda m, x, y: (x[0] * 2,)),
    "before the backward": lambda m: m.register_full_backward_pre_hook(lambda m, y: (y[0] * 3,)),
    "another dict": replaced,
}


@pytest.mark.filterwarnings("ignore::tj_core.errors.TjWarning")  # graph breaks at some hooks
@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("path", ["", "0", "1", "1.0"])
def test_hooks_that_come_and_go(name: str, path: str) -> None:
    mine, theirs = net(), net()
    jitted = tj.jit(mine, strict=False)

    def step(f: Any) -> tuple[torch.Tensor, Any]:
        x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        y = f(x)
        y.sum().backward()
        return y.detach(), x.grad

    def hold() -> None:
        torch.testing.assert_close(step(jitted), step(theirs))

    hold()
    handles = [HOOKS[name](m.get_submodule(path)) for m in (mine, theirs)]
    hold()
    for handle in handles:
        handle.remove()
    hold()


def test_one_guard_for_each_module(monkeypatch: pytest.MonkeyPatch) -> None:
    own, asked = module_hooks.has_no_hooks, list[Any]()
    monkeypatch.setattr(module_hooks, "has_no_hooks", lambda d: asked.append(d) or own(d))
    model = net()
    jitted = tj.jit(model)
    jitted(torch.ones(2, 3))
    assert "L['fn'] has no hooks" in map(str, tj.guards(jitted))
    asked.clear()
    jitted(torch.ones(2, 3))
    assert sorted(map(id, asked)) == sorted(id(vars(m)) for m in model.modules())


def test_modules_with_dicts_of_their_own_are_guarded_one_by_one() -> None:
    assert not module_hooks.has_no_hooks(dict.fromkeys(module_hooks.HOOKS, "one"))

    class Without(nn.Module):
        @property
        def _backward_hooks(self) -> dict[int, Any]:
            return {}

        @_backward_hooks.setter
        def _backward_hooks(self, value: Any) -> None:
            pass

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    model = Without()
    jitted = tj.jit(model)
    assert jitted(torch.ones(1)).item() == 2
    model.register_forward_hook(lambda m, x, y: y * 2)
    assert jitted(torch.ones(1)).item() == 4
