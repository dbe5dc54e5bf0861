"""Seconds of the first call (capture and compile) of a small GPT, against torch.compile.

    python benchmarks/first_call.py [--layers 2,16] [--rounds 5] [--grad | --step]

Each measurement has a process and an empty cache directory of its own; systems take turns. A
process first compiles a one-layer model, so that imports and first uses are in no figure. With
``--step`` a measurement is a forward and a backward, and the other system is aot_eager, which makes
gradients ahead of time, too. Seconds are those that the process computed, so that other work on the
machine is in no figure.
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

BACKENDS = {"torch.compile(eager)": "eager", "torch.compile(aot_eager)": "aot_eager"}


def wrapper(system: str) -> Callable[[Any], Any]:
    """What makes a model into a compiled one."""
    import tj_core as tj
    import torch

    if system == "tj":
        return lambda model: tj.jit(model, session=tj.Session())
    return lambda model: torch.compile(model, backend=BACKENDS[system])


def measure(system: str, layers: int, mode: str) -> float:
    """Seconds of the first call of a model with ``layers`` layers, in this process."""
    import torch
    from depth import GPT

    torch.set_num_threads(1)
    wrap = wrapper(system)
    index, target = torch.randint(0, 128, (2, 32)), torch.randint(0, 128, (2, 32))

    def run(compiled: Any) -> None:
        loss = compiled(index, target)
        if mode == "step":
            loss.backward()

    with torch.set_grad_enabled(mode != "inference"):
        run(wrap(GPT(1)))
        torch._dynamo.reset()
        compiled = wrap(GPT(layers))
        start = time.process_time()
        run(compiled)
        return time.process_time() - start


def in_process(system: str, layers: int, mode: str) -> float:
    """`measure` in a new process with an empty cache directory."""
    command = [sys.executable, __file__, "--one", system, "--layers", str(layers)]
    with tempfile.TemporaryDirectory() as folder:
        cache = {"TORCHINDUCTOR_CACHE_DIR": folder, "XDG_CACHE_HOME": folder}
        done = subprocess.run(
            command + [f"--{mode}"] * (mode != "inference"),
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
    how = parser.add_mutually_exclusive_group()
    for mode, what in (("grad", "with gradients enabled"), ("step", "forward and backward")):
        how.add_argument(f"--{mode}", action="store_const", const=mode, dest="mode", help=what)
    parser.add_argument("--one", choices=(*BACKENDS, "tj"), help=argparse.SUPPRESS)
    parser.set_defaults(mode="inference")
    arguments = parser.parse_args()
    mode = arguments.mode
    if arguments.one:
        print(measure(arguments.one, int(arguments.layers), mode))
        return
    systems = ("torch.compile(aot_eager)" if mode == "step" else "torch.compile(eager)", "tj")
    for layers in map(int, arguments.layers.split(",")):
        seconds: dict[str, list[float]] = {system: [] for system in systems}
        for i in range(arguments.rounds):
            for system in systems[:: 1 if i % 2 else -1]:
                seconds[system].append(in_process(system, layers, mode))
        ratio = statistics.median(
            t / e for t, e in zip(seconds["tj"], seconds[systems[0]], strict=True)
        )
        medians = ", ".join(f"{s} {statistics.median(v):.3f} s" for s, v in seconds.items())
        print(f"{layers} layers: {medians}; tj x{ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
