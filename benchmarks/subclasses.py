"""Tensor subclasses: cost of a call with subclass parameters, and of tj-subclass without any.

    python benchmarks/subclasses.py [--rounds N]

Medians of interleaved rounds in one process; quote differences and ratios, not absolute times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
from timing import interleaved, table
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

BOTH = ("torch", "autograd")
SYSTEMS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "tj": lambda f: tj.jit(f, plugins=[*BOTH, "subclass"]),
    "tj without tj-subclass": lambda f: tj.jit(f, plugins=BOTH),
    "torch.compile(aot_eager)": lambda f: torch.compile(f, backend="aot_eager"),
}


def linears(count: int, *, subclass: bool) -> nn.Module:
    """A chain of linear layers, whose weights are of a subclass, or plain."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8, bias=False) for _ in range(count)]
    if subclass:
        for layer in layers:
            weight = layer.weight.detach()
            layer.weight = nn.Parameter(TwoTensor(weight, weight * 0.5))
    return nn.Sequential(*layers)


def forward(f: Any, x: torch.Tensor) -> None:
    with torch.no_grad():
        f(x)


def train_step(f: Any, x: torch.Tensor) -> None:
    f(x).sum().backward()


CASES: dict[str, tuple[int, bool, Callable[[Any, torch.Tensor], None]]] = {
    "1 subclass parameter, inference": (1, True, forward),
    "1 subclass parameter, forward and backward": (1, True, train_step),
    "10 subclass parameters, inference": (10, True, forward),
    "10 subclass parameters, forward and backward": (10, True, train_step),
    "10 plain parameters, inference": (10, False, forward),
    "10 plain parameters, forward and backward": (10, False, train_step),
}


def run(case: str, rounds: int) -> str:
    """Table of timings of a case."""
    count, subclass, call = CASES[case]
    x = torch.randn(2, 8)
    compiled = {n: system(linears(count, subclass=subclass)) for n, system in SYSTEMS.items()}
    calls = {n: (lambda f=f: call(f, x)) for n, f in compiled.items()}
    return table(case, interleaved(calls, baseline="eager", number=20, rounds=rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for case in CASES:
        torch._dynamo.reset()
        print(run(case, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
