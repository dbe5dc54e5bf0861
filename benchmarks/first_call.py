"""Seconds of the first call (capture and compile) of a small GPT, against torch.compile.

    python benchmarks/first_call.py [--layers 2,16] [--rounds 5] [--grad]

Each measurement has a process and an empty cache directory of its own; systems take turns. A
process first compiles a one-layer model, so that imports and first uses are in no figure.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

SYSTEMS = ("torch.compile(eager)", "tj")


def wrapper(system: str) -> Callable[[Any], Any]:
    """What makes a model into a compiled one."""
    import tj_core as tj
    import torch

    if system == "tj":
        return lambda model: tj.jit(model, session=tj.Session())
    return lambda model: torch.compile(model, backend="eager")


def measure(system: str, layers: int, grad: bool) -> float:
    """Seconds of the first call of a model with ``layers`` layers, in this process."""
    import torch
    from depth import GPT

    torch.set_num_threads(1)
    wrap = wrapper(system)
    index, target = torch.randint(0, 128, (2, 32)), torch.randint(0, 128, (2, 32))
    with torch.set_grad_enabled(grad):
        wrap(GPT(1))(index, target)
        torch._dynamo.reset()
        compiled = wrap(GPT(layers))
        start = time.perf_counter()
        compiled(index, target)
        return time.perf_counter() - start


def in_process(system: str, layers: int, grad: bool) -> float:
    """`measure` in a new process with an empty cache directory."""
    command = [sys.executable, __file__, "--one", system, "--layers", str(layers)]
    with tempfile.TemporaryDirectory() as folder:
        cache = {"TORCHINDUCTOR_CACHE_DIR": folder, "XDG_CACHE_HOME": folder}
        done = subprocess.run(
            command + ["--grad"] * grad,
            env={**os.environ, **cache},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", default="2,16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--grad", action="store_true", help="with gradients enabled")
    parser.add_argument("--one", choices=SYSTEMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(measure(arguments.one, int(arguments.layers), arguments.grad))
        return
    for layers in map(int, arguments.layers.split(",")):
        seconds: dict[str, list[float]] = {system: [] for system in SYSTEMS}
        for i in range(arguments.rounds):
            for system in SYSTEMS[:: 1 if i % 2 else -1]:
                seconds[system].append(in_process(system, layers, arguments.grad))
        ratio = statistics.median(
            t / e for t, e in zip(seconds["tj"], seconds[SYSTEMS[0]], strict=True)
        )
        medians = ", ".join(f"{s} {statistics.median(v):.3f} s" for s, v in seconds.items())
        print(f"{layers} layers: {medians}; tj x{ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
