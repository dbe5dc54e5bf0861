"""Programs and modes of the user's, around a call, in it and in its backward; modes see equal
calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tj_conformance.programs.observations import SeenProgram

__all__ = ["MODES", "moded_programs"]

MODES: Mapping[str, str] = MappingProxyType(
    {
        "function": "Functions()",
        "dispatch": "Operators()",
        "function twice": "Functions(), Functions()",
        "both": "Functions(), Operators()",
        "device": "torch.device('cpu')",
        "device and function": "torch.device('cpu'), Functions()",
    }
)
"""Modes to enter."""

_CALLS: Mapping[str, str] = MappingProxyType(
    {
        "around": "    with {mode}:\n        return program(x)\n",
        "around with gradients": "    x = leaf(x)\n    with {mode}:\n        y = program(x)\n"
        "    y.sum().backward()\n    return y, x.grad\n",
        "backward": "    x = leaf(x)\n    y = program(x)\n    with {mode}:\n"
        "        y.backward(torch.ones_like(y))\n    return y, x.grad\n",
        "gradient": "    x = leaf(x)\n    y = program(x)\n    with {mode}:\n"
        "        return torch.autograd.grad(y, x, torch.ones(4))\n",
        "second gradient": "    x = leaf(x)\n    y = program(x)\n"
        "    (g,) = torch.autograd.grad(y, x, torch.ones(4), create_graph=True)\n"
        "    with {mode}:\n        return torch.autograd.grad(g, x, torch.ones(4))\n",
        "both": "    x = leaf(x)\n    with {mode}:\n        y = program(x)\n"
        "        y.backward(torch.ones_like(y))\n    return y, x.grad\n",
        "now and then": "    a = program(x)\n    with {mode}:\n        b = program(x)\n"
        "    c = program(x)\n    with {mode}:\n        d = program(x)\n    return a, b, c, d\n",
    }
)
"""Ways to call a program."""

_BODIES: Mapping[str, str] = MappingProxyType(
    {
        "pointwise": "    return x.sin() * 3 + x.cos()\n",
        "write": "    y = x.sin()\n    y.mul_(2)\n    return y + x\n",
        "break": "    y = x.sin()\n    print(end='')\n    return y.sin()\n",
        "random": "    return torch.rand(4) + x.sin()\n",
        "number": "    return x.sin() * x.detach().sum().item()\n",
        "within function": "    with Functions():\n        y = x.sin()\n    return y + x.sin()\n",
        "within dispatch": "    with Operators():\n        y = x.sin()\n    return y + x.sin()\n",
        "within, a break": "    with Functions():\n        y = x.sin()\n        print(end='')\n"
        "        y = y.sin()\n    return y + x.sin()\n",
        "module": "    return net(x)\n",
        "own backward": "    return Own.apply(x) + x\n",
    }
)
"""Bodies of programs."""

_HEAD = """\
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

names = []

class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in ("sin", "cos", "backward"):
            names.append(name)
        result = function(*args, **(kwargs or {}))
        return result * 2 if name == "sin" else result

class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if operator in (torch.ops.aten.sin.default, torch.ops.aten.cos.default):
            names.append(str(operator))
            return result * 2
        return result

class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos()

net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))

def leaf(x):
    return x.clone().requires_grad_()

def state():
    seen = [*names]
    names.clear()
    return seen, [p.grad for p in net.parameters()]

"""


def moded_programs() -> Iterator[SeenProgram]:
    """Each body, called each way in each mode; three times, with other values."""
    for (mode, entered), (way, call), (name, body) in itertools.product(
        MODES.items(), _CALLS.items(), _BODIES.items()
    ):
        text = f"def program(x):\n{body}\ndef call(program, x):\n{call.format(mode=entered)}"
        calls = tuple(f"(torch.arange(1.0, 5.0) * {k},)" for k in (1, -1, 0.5))
        yield SeenProgram(f"{name}, {way}, {mode}", _HEAD + text, calls)
