"""Steps of all of PyTorch's optimizers in one program: equal to eager's to the bit, no break."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

Make = Callable[[Any], optim.Optimizer]

VARIANTS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "SGD maximize": {"momentum": 0.9, "dampening": 0.1, "maximize": True},
    "Adam": {"amsgrad": True, "weight_decay": 0.1},
    "Adam maximize": {"maximize": True},
    "AdamW": {"amsgrad": True, "maximize": True},
    "RMSprop": {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "maximize": True},
    "Adagrad": {},
    "Adagrad decay": {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1},
    "Adadelta": {"weight_decay": 0.1, "maximize": True},
    "Adamax": {"weight_decay": 0.1, "maximize": True},
    "NAdam": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "Rprop": {"maximize": True},
    "Adafactor": {"weight_decay": 0.1, "maximize": True},
}
FUSED = ("SGD", "SGD maximize", "Adam", "AdamW", "Adagrad decay")
CASES = {
    f"{name} {how}": (name.partition(" ")[0], arguments | flags)
    for how, flags in (
        ("each", {"foreach": False}),
        ("lists", {"foreach": True}),
        ("fused", {"fused": True}),
    )
    for name, arguments in VARIANTS.items()
    if how != "fused" or name in FUSED
} | {"Muon": ("Muon", {"lr": 0.1})}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(5, 7), nn.Linear(7, 3, bias=False)
        self.unused = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(self.up(x).tanh())
        return found.square().sum()


def made(kind: str, arguments: dict[str, Any]) -> tuple[Net, optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    parameters = [p for p in net.parameters() if kind != "Muon" or p.ndim == 2]
    return net, getattr(optim, kind)(parameters, **arguments)


def data(step: int) -> torch.Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(step))


def state(net: nn.Module, optimizer: optim.Optimizer) -> Any:
    found = optimizer.state_dict()["state"]
    return copy.deepcopy([dict(net.named_parameters()), found])


def trained(net: Net, optimizer: optim.Optimizer, step: Callable[[], Any], steps: int = 4) -> Any:
    for i in range(steps):
        optimizer.zero_grad()
        net(data(i)).backward()
        step()
    return state(net, optimizer)


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, check_stride=True)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CASES)
def test_a_step_is_one_program(name: str) -> None:
    """Four steps: bias corrections differ from those in float32 in the second at the latest."""
    net, optimizer = made(*CASES[name])
    step = tj.jit(optimizer.step)
    found = trained(net, optimizer, step)
    net, optimizer = made(*CASES[name])
    same(found, trained(net, optimizer, optimizer.step))
    assert not tj.stats(step).fallbacks
    # Momentum begins with the gradient: another program.
    assert tj.stats(step).entries == 1 + name.startswith("SGD")


def training(net: Net, optimizer: optim.Optimizer) -> Callable[[torch.Tensor], Any]:
    def train(x: torch.Tensor) -> Any:
        loss = net(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train


@pytest.mark.sampled(16)
@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
@pytest.mark.parametrize("name", CASES)
def test_forward_backward_and_step(name: str) -> None:
    """The backward breaks the graph; what follows it is one program with the step."""
    results = []
    torch.compiler.reset()  # which counts programs of one function
    for wrap in (tj.jit, lambda f: f):
        net, optimizer = made(*CASES[name])
        train = wrap(training(net, optimizer))
        losses = []
        for i in range(4):
            optimizer.zero_grad()
            losses.append(train(data(i)))
        results.append([losses, state(net, optimizer)])
        if wrap is tj.jit:
            assert len(tj.stats(train).fallbacks) == 1
            assert tj.stats(train).entries == 2 + name.startswith("SGD")
    same(*results)


def test_a_closure() -> None:
    results = []
    for wrap in (tj.jit, lambda f: f):
        net, optimizer = made("AdamW", {})
        step = wrap(optimizer.step)

        def closure(net: Any = net, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = net(data(0))
            loss.backward()
            return loss

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            losses = [step(closure).detach() for _ in range(3)]
        results.append([losses, state(net, optimizer)])
        if wrap is tj.jit:
            assert len([w for w in said if issubclass(w.category, tj.TjWarning)]) == 1
            # The step, and up to PyTorch 2.13 the forward in the closure.
            assert tj.stats(step).entries in (1, 2)
    same(*results)


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
@pytest.mark.parametrize("name", ["ASGD", "RAdam"])
def test_a_branch_on_data_runs_in_eager(name: str) -> None:
    results = []
    for wrap in (tj.jit, lambda f: f):
        net, optimizer = made(name, {"t0": 1} if name == "ASGD" else {})
        step = wrap(optimizer.step)
        results.append(trained(net, optimizer, step, 8))
        if wrap is tj.jit:
            assert len(tj.stats(step).fallbacks) == 1
            assert not tj.stats(step).entries, "no part of the step is compiled"
    same(*results)


def scheduled(schedule: Callable[[Any], Any], wrap: Any) -> Any:
    net, optimizer = made("AdamW", {"lr": 0.1})
    plan = schedule(optimizer)
    step = wrap(optimizer.step)
    rates = []
    for i in range(6):
        optimizer.zero_grad()
        net(data(i)).backward()
        step()
        plan.step()
        rates.append(plan.get_last_lr())
    if wrap is tj.jit:
        assert not tj.stats(step).fallbacks
        assert tj.stats(step).entries <= 2, "one with a number for the learning rate"
    return rates, state(net, optimizer)


@pytest.mark.parametrize(
    "schedule",
    [
        functools.partial(lr_scheduler.ExponentialLR, gamma=0.9),
        functools.partial(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=10),
    ],
)
def test_a_schedule_of_learning_rates(schedule: Callable[[Any], Any]) -> None:
    """A scheduler wraps the step, and sets a number that eager computes with in Python."""
    same(scheduled(schedule, tj.jit), scheduled(schedule, lambda f: f))


def test_what_a_program_sets_on_an_optimizer() -> None:
    _, optimizer = made("SGD", {})

    def marked(x: torch.Tensor) -> torch.Tensor:
        optimizer.mark = "set"  # type: ignore[attr-defined]
        return x + 1

    tj.jit(marked)(torch.ones(2))
    assert vars(optimizer)["mark"] == "set"


def test_parameters_are_written_in_place() -> None:
    """No new ones are made and copied back: the step has the writes of eager."""
    net, optimizer = made("AdamW", {"foreach": False})
    step = tj.jit(optimizer.step, plugins=["torch", "autograd"])
    trained(net, optimizer, step, 1)
    names = [call.symbol.qualname for call in tj.last_trace(step).calls]
    assert names.count("torch.Tensor.addcdiv_") == 3
    assert not any(name.startswith("tj.") for name in names)
    assert "it writes parameters" in str(tj.explain(step))


def test_a_tensor_as_the_learning_rate() -> None:
    results = []
    for wrap in (tj.jit, lambda f: f):
        net, optimizer = made("SGD", {"lr": torch.tensor(0.1), "foreach": True})
        results.append(trained(net, optimizer, wrap(optimizer.step)))
    same(*results)


def test_parameters_of_several_types() -> None:
    """Kernels for lists take lists of one type."""
    results = []
    for wrap in (tj.jit, lambda f: f):
        torch.manual_seed(0)
        kinds = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
        values = [nn.Parameter(torch.randn(3, dtype=kind)) for kind in kinds]
        optimizer = optim.Adam(values, foreach=True, amsgrad=True)
        step = wrap(optimizer.step)
        for _ in range(3):
            for value in values:
                value.grad = torch.randn(3).to(value.dtype)
            step()
        results.append([list(values), optimizer.state_dict()["state"]])
        if wrap is tj.jit:
            assert not tj.stats(step).fallbacks
            names = [call.symbol.qualname for call in tj.last_trace(step).calls]
            assert names.count("torch._foreach_maximum_") == len(kinds), "a list for each type"
    same(*results)


def test_a_state_that_is_loaded() -> None:
    """Another count of steps, other averages: the same program."""
    results = []
    for wrap in (tj.jit, lambda f: f):
        net, optimizer = made("AdamW", {})
        step = wrap(optimizer.step)
        trained(net, optimizer, step)
        kept = copy.deepcopy(optimizer.state_dict())
        trained(net, optimizer, step)
        optimizer.load_state_dict(kept)
        optimizer.param_groups[0]["weight_decay"] = 0.5
        results.append(trained(net, optimizer, step))
    same(*results)


def test_capturable_on_a_cpu_is_refused() -> None:
    net, optimizer = made("Adam", {"capturable": True})
    step = tj.jit(optimizer.step)
    net(data(0)).backward()
    with pytest.raises(AssertionError, match="capturable=True"):
        step()
