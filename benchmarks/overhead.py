"""Call overhead: time of a call beyond its kernels, against eager and torch.compile.

    python benchmarks/overhead.py [--rounds N]

Medians of interleaved rounds in one process; quote differences and ratios, not absolute times.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
from timing import interleaved, table
from torch import nn

PLUGINS = {"tj": (), "tj, Inductor": ("inductor",)}
"""Plugins of tj's systems, in addition to those that both have."""


def systems() -> dict[str, Callable[[Any], Any]]:
    """Compared systems, by name; tj's, if their plugins are installed."""
    found: dict[str, Callable[[Any], Any]] = {"eager": lambda f: f}
    for name, plugins in PLUGINS.items():
        with contextlib.suppress(tj.TjError):
            session = tj.Session((*plugins, "autograd", "torch"))
            found[name] = functools.partial(tj.jit, session=session)
    for backend in ("inductor", "eager", "aot_eager"):
        found[f"torch.compile({backend})"] = functools.partial(torch.compile, backend=backend)
    return found


def plus_one() -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x + 1


def linears() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(25)))


def forward(f: Any, x: torch.Tensor) -> None:
    f(x)


def train_step(f: Any, x: torch.Tensor) -> None:
    f(x).sum().backward()


Run = Callable[[Any, torch.Tensor], None]
CASES: dict[str, tuple[Callable[[], Any], Callable[[], torch.Tensor], bool, int, Run]] = {
    "x + 1, 4 elements, inference": (plus_one, lambda: torch.randn(4), False, 500, forward),
    "x + 1, 4 elements, forward with grad": (
        plus_one,
        lambda: torch.randn(4, requires_grad=True),
        True,
        500,
        forward,
    ),
    "25 x Linear(8, 8), 50 parameters, inference": (
        linears,
        lambda: torch.randn(2, 8),
        False,
        50,
        forward,
    ),
    "25 x Linear(8, 8), 50 parameters, forward with grad": (
        linears,
        lambda: torch.randn(2, 8),
        True,
        50,
        forward,
    ),
    "25 x Linear(8, 8), 50 parameters, forward and backward": (
        linears,
        lambda: torch.randn(2, 8),
        True,
        30,
        train_step,
    ),
}


def run(case: str, rounds: int) -> str:
    """Table of timings of a case."""
    make, example, grad, number, call = CASES[case]
    x = example()
    with torch.set_grad_enabled(grad):
        compiled = {name: system(make()) for name, system in systems().items()}
        calls = {name: (lambda f=f: call(f, x)) for name, f in compiled.items()}
        return table(case, interleaved(calls, baseline="eager", number=number, rounds=rounds))


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
