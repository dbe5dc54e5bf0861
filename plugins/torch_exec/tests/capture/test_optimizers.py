"""Jitted steps of PyTorch's optimizers: parameters and state equal eager's to the bit."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

pytestmark = pytest.mark.filterwarnings("ignore:tj. .*:tj_core.TjWarning")

WRAPS: dict[str, Callable[[Any], Any]] = {
    "jit": tj.jit,
    "hook": lambda f: tj.jit(f, frontend="dynamo_hook"),
    "backend": lambda f: torch.compile(f, backend="tj"),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda ps, **kw: torch.optim.SGD(ps, lr=0.1, **kw),
    "momentum": lambda ps, **kw: torch.optim.SGD(ps, lr=0.1, momentum=0.9, **kw),
    "adam": lambda ps, **kw: torch.optim.Adam(ps, lr=0.1, **kw),
    "adamw": lambda ps, **kw: torch.optim.AdamW(ps, lr=0.1, **kw),
    "rmsprop": lambda ps, **kw: torch.optim.RMSprop(ps, lr=0.1, **kw),
}


def trained(make: Callable[..., torch.optim.Optimizer], wrap: Callable[[Any], Any]) -> Any:
    """Parameters and state after three steps."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3).double()
    optimizer = make(model.parameters())
    step = wrap(optimizer.step)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3).double()).square().sum().backward()
        step()
    state = [v for s in optimizer.state_dict()["state"].values() for v in s.values()]
    return [p.detach() for p in model.parameters()], state


@pytest.mark.sampled(12)
@pytest.mark.parametrize("how", WRAPS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_updates_as_eager_does(name: str, how: str) -> None:
    """Dynamo makes parameters attributes of its graph, and may compute other bias corrections."""
    torch.compiler.reset()
    got = trained(OPTIMIZERS[name], WRAPS[how])
    expected = trained(OPTIMIZERS[name], lambda step: step)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("how", WRAPS)
@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_step_of_lists_of_tensors(name: str, how: str) -> None:
    torch.compiler.reset()

    def make(parameters: Any) -> torch.optim.Optimizer:
        return OPTIMIZERS[name](parameters, foreach=True)

    got = trained(make, WRAPS[how])
    torch.testing.assert_close(got, trained(make, lambda step: step), rtol=0, atol=0)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("how", WRAPS)
@pytest.mark.parametrize("name", ["momentum", "adam", "rmsprop"])
def test_state_is_freed_with_the_optimizer(name: str, how: str) -> None:
    """The compiled function, which stays alive, must not keep the optimizer's state alive."""
    torch.compiler.reset()
    model = torch.nn.Linear(3, 3)
    optimizer: Any = OPTIMIZERS[name](model.parameters())

    def step() -> None:
        optimizer.step()

    wrapped = WRAPS[how](step)
    gc.disable()
    try:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(3)).sum().backward()
            wrapped()
        state = [v for v in optimizer.state[model.weight].values() if isinstance(v, torch.Tensor)]
        alive = [weakref.ref(v) for v in state]
        del state
        assert alive
        optimizer = None
        assert [ref() for ref in alive] == [None] * len(alive)
    finally:
        gc.enable()
