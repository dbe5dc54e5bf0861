"""First calls of a small GPT whose kernels are compiled behind them (``compile="background"``).

    python benchmarks/behind.py [--layers 2,16] [--rounds 3]

Each measurement has a process and an empty cache folder of its own; systems take turns. A process
first compiles a linear layer, so that imports are in no figure. Printed are medians of wall seconds
of the first forward and the first step (forward and backward), of what these take in eager, of the
time until kernels run, of the CPU seconds up to then, those of compilers included, and the
milliseconds of a step afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from first_call import computed

SYSTEMS = ("eager", "torch.compile", "tj", "tj, background")
FIGURES = ("forward", "step", "fused", "CPU", "later step [ms]", "slowest step")


def wrapper(system: str) -> Callable[[Any], Any]:
    """Make the function that compiles a model."""
    import tj_core as tj
    import torch

    if system == "eager":
        return lambda model: model
    if system == "torch.compile":
        return torch.compile
    mode = "background" if "background" in system else "call"
    session = tj.Session(("inductor", "autograd", "torch"))
    return lambda model: tj.jit(model, session=session, compile=mode)


def measure(system: str, layers: int) -> list[float]:
    """`FIGURES` of a model with ``layers`` layers, in this process."""
    import tj_core as tj
    import torch
    from depth import GPT

    torch.set_num_threads(1)
    wrap, behind = wrapper(system), "background" in system
    index, target = torch.randint(0, 128, (2, 32)), torch.randint(0, 128, (2, 32))
    warm = wrap(torch.nn.Linear(3, 3))
    warm(torch.ones(2, 3)).sum().backward()
    if behind:
        tj.wait(warm)
    torch._dynamo.reset()
    compiled = wrap(GPT(layers))
    start, cpu = time.perf_counter(), computed()
    loss = compiled(index, target)
    forward = time.perf_counter() - start
    loss.backward()
    step = time.perf_counter() - start
    steps = [0.0]
    while behind and tj.stats(compiled).region_waiting:
        began = time.perf_counter()
        compiled(index, target).backward()
        steps.append(time.perf_counter() - began)
    fused, cpu = time.perf_counter() - start, computed() - cpu
    later = []
    for _ in range(30):
        began = time.perf_counter()
        compiled(index, target).backward()
        later.append(time.perf_counter() - began)
    return [forward, step, fused, cpu, 1000 * statistics.median(later), max(steps)]


def in_process(system: str, layers: int) -> list[float]:
    """`measure` in a new process with an empty cache folder."""
    command = [sys.executable, __file__, "--one", system, "--layers", str(layers)]
    with tempfile.TemporaryDirectory() as folder:
        cache = {"TORCHINDUCTOR_CACHE_DIR": folder, "XDG_CACHE_HOME": folder}
        alone = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TJ_CACHE_DIR": folder}
        done = subprocess.run(
            command,
            env={**os.environ, **cache, **alone},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", default="2,16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=SYSTEMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, int(arguments.layers))))
        return
    for layers in map(int, arguments.layers.split(",")):
        rows: dict[str, list[list[float]]] = {system: [] for system in SYSTEMS}
        for i in range(arguments.rounds):
            for system in SYSTEMS[:: 1 if i % 2 else -1]:
                rows[system].append(in_process(system, layers))
        load = os.getloadavg()[0]
        print(f"{layers} layers, load {load:.0f}: " + ", ".join(FIGURES))
        for system, found in rows.items():
            medians = map(statistics.median, zip(*found, strict=True))
            print(f"  {system:16}" + "".join(f"{value:10.3f}" for value in medians), flush=True)


if __name__ == "__main__":
    main()
