"""Programs that tell modules and parameters apart, which are tied and untied between calls."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import equal_to_eager

TEXT = """
nn = torch.nn
x = torch.ones(2)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.BatchNorm1d(2)
        self.b = nn.BatchNorm1d(2)
m = Net()
def f(x):
    {}
    return x + m.a.weight.sum() * 2
def tie(name): setattr(m.b, name, getattr(m.a, name))
def untie(name, cls): setattr(m.b, name, cls(torch.full((2,), 3.0)))
def tie_modules(): m.b = m.a
def untie_modules(): m.b = nn.BatchNorm1d(2)
"""

PROGRAMS = {
    "is": "x = x * 3 if m.a.weight is m.b.weight else x",
    "is not": "x = x * 3 if m.a.weight is not m.b.weight else x",
    "is, of statistics": "x = x * 3 if m.a.running_mean is m.b.running_mean else x",
    "a set": "x = x * len({m.a.weight, m.b.weight, m.a.bias})",
    "a dict": "x = x * len(dict.fromkeys([m.a.weight, m.b.weight]))",
    "a set of modules": "x = x * len({m.a, m.b})",
    "parameters": "x = x + sum(p.sum() for p in m.parameters())",
    "named_parameters": "for name, p in m.named_parameters(): x = x + p.sum() * len(name)",
    "buffers": "for name, b in m.named_buffers(): x = x + b.sum() * len(name)",
    "modules": "x = x * len(list(m.modules()))",
    "children": "for name, c in m.named_children(): x = x + len(name)",
}
"""Statements of a function of ``x``."""


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_tied_between_calls(name: str, tied: bool) -> None:
    changes = [
        ("tie('weight')", "untie('weight', nn.Parameter)"),
        ("tie('running_mean')", "untie('running_mean', torch.Tensor)"),
        ("tie_modules()", "untie_modules()"),
    ]
    calls = [call for pair in changes for call in (pair[::-1] if tied else pair)]
    equal_to_eager(TEXT.format(PROGRAMS[name]), "f(x)", *(c for k in calls for c in (k, "f(x)")))()


def test_no_more_is_compiled_than_before() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    jitted = tj.jit(lambda x: sum(p.sum() for p in net.parameters()) + x)
    for _ in range(3):
        jitted(torch.ones(2))
        net[1].weight = torch.nn.Parameter(torch.ones(2, 2))
    assert tj.stats(jitted).entries == 1
    assert not tj.stats(jitted).fallbacks
