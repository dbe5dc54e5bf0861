"""Steps of optimizers: parameters and averages in float32, gradients that stay.

    python benchmarks/optimizers.py [--sets small,many] [--kinds SGD,AdamW] [--rounds 15]

``small`` has the parameters of three linear layers of width 64, ``many`` a hundred matrices of
16x16, ``large`` four of 1024x1024. Steps of lists of tensors are named ``lists``. Medians of CPU
time with one thread, in turns, and of the seconds of the first two steps, which compile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
from timing import interleaved, table
from torch import optim

SETS: dict[str, list[tuple[int, ...]]] = {
    "small": [(64, 64), (64,), (64, 64), (64,), (10, 64), (10,)],
    "many": [(16, 16)] * 100,
    "large": [(1024, 1024)] * 4,
}
KINDS: dict[str, dict[str, Any]] = {"SGD": {"lr": 1e-3, "momentum": 0.9}, "AdamW": {"lr": 1e-3}}


def optimizer(shapes: list[tuple[int, ...]], kind: str, foreach: bool) -> optim.Optimizer:
    """An optimizer of parameters with gradients."""
    torch.manual_seed(0)
    parameters = [torch.randn(shape).requires_grad_() for shape in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    made: optim.Optimizer = getattr(optim, kind)(parameters, foreach=foreach, **KINDS[kind])
    return made


def main() -> None:
    """Parse the command line, and print a table for each set and kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.sets.split(","):
        for kind in args.kinds.split(","):
            for foreach in (False, True):
                title = f"{name}, {kind}{', lists' if foreach else ''}"
                print(measured(title, SETS[name], kind, foreach, args.rounds), flush=True)


def measured(
    title: str, shapes: list[tuple[int, ...]], kind: str, foreach: bool, rounds: int
) -> str:
    """The table of one row."""
    torch.compiler.reset()
    wraps: dict[str, Callable[[Any], Any]] = {
        "eager": lambda step: step,
        "tj": tj.jit,
        "torch.compile": torch.compile,
    }
    steps, first = {}, {}
    for system, wrap in wraps.items():
        steps[system] = wrap(optimizer(shapes, kind, foreach).step)
        start = time.perf_counter()
        for _ in range(2):
            steps[system]()
        first[system] = time.perf_counter() - start
    start = time.process_time()
    steps["eager"]()
    number = max(3, min(200, int(0.03 / (time.process_time() - start))))
    timings = interleaved(
        steps, baseline="eager", number=number, rounds=rounds, clock=time.process_time
    )
    seconds = ", ".join(f"{system} {first[system]:.1f} s" for system in wraps if system != "eager")
    return f"{table(title, timings)}\nfirst two steps: {seconds}"


if __name__ == "__main__":
    main()
