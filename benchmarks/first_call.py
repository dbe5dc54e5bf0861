"""Seconds of the first call (capture and compile) of a small GPT, against torch.compile.

    python benchmarks/first_call.py [--layers 2,16] [--rounds 5] [--grad | --step | --fused]
        [--cold]

Each measurement has a process and an empty cache directory of its own; systems take turns. A
process first compiles a one-layer model, so that imports and first uses are in no figure. With
``--step`` a measurement is a forward and a backward, and the other system is aot_eager, which makes
gradients ahead of time, too; with ``--fused`` both systems also make kernels with Inductor, and the
process first compiles a linear layer, which has none of the kernels. With ``--cold`` it compiles
nothing before, and Inductor's precompiled headers are not there either, which are else kept for
all processes: that is the first program of a machine. Seconds are those that the process computed,
and the C++ compilers that it started, so that other work on the machine is in no figure.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

BACKENDS = {
    "torch.compile(eager)": "eager",
    "torch.compile(aot_eager)": "aot_eager",
    "torch.compile": "inductor",
}
PLUGINS = {"tj": ("autograd", "torch"), "tj, Inductor": ("inductor", "autograd", "torch")}
SYSTEMS = {
    "inference": ("torch.compile(eager)", "tj"),
    "grad": ("torch.compile(eager)", "tj"),
    "step": ("torch.compile(aot_eager)", "tj"),
    "fused": ("torch.compile", "tj, Inductor"),
}
"""Compared systems, by mode of measurement."""


def wrapper(system: str) -> Callable[[Any], Any]:
    """Make the function that compiles a model."""
    import tj_core as tj
    import torch

    if system in PLUGINS:
        return lambda model: tj.jit(model, session=tj.Session(PLUGINS[system]))
    return lambda model: torch.compile(model, backend=BACKENDS[system])


def measure(system: str, layers: int, mode: str, cold: bool) -> float:
    """Seconds of the first call of a model with ``layers`` layers, in this process.

    If ``cold``, it is the first program of the process.
    """
    import torch
    from depth import GPT

    torch.set_num_threads(1)
    wrap = wrapper(system)
    index, target = torch.randint(0, 128, (2, 32)), torch.randint(0, 128, (2, 32))

    def run(compiled: Any) -> None:
        loss = compiled(index, target)
        if mode in ("step", "fused"):
            loss.backward()

    with torch.set_grad_enabled(mode != "inference"):
        if cold:
            pass
        elif mode == "fused":
            wrap(torch.nn.Linear(3, 3))(torch.ones(2, 3)).sum().backward()
        else:
            run(wrap(GPT(1)))
        torch._dynamo.reset()
        compiled = wrap(GPT(layers))
        start = computed()
        run(compiled)
        return computed() - start


def computed() -> float:
    """CPU seconds of this process and its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def in_process(system: str, layers: int, mode: str, cold: bool) -> float:
    """`measure` in a new process with an empty cache directory."""
    command = [sys.executable, __file__, "--one", system, "--layers", str(layers)]
    with tempfile.TemporaryDirectory() as folder:
        cache = {"TORCHINDUCTOR_CACHE_DIR": folder, "XDG_CACHE_HOME": folder}
        if cold:
            cache["TMPDIR"] = folder  # where headers are
        alone = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # else other processes compile, unseen
        done = subprocess.run(
            command + [f"--{mode}"] * (mode != "inference") + ["--cold"] * cold,
            env={**os.environ, **cache, **alone},
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
    whats = {"grad": "with gradients", "step": "forward and backward", "fused": "with kernels"}
    for mode, what in whats.items():
        how.add_argument(f"--{mode}", action="store_const", const=mode, dest="mode", help=what)
    first = "nothing is compiled before, as for the first program of a machine"
    parser.add_argument("--cold", action="store_true", help=first)
    parser.add_argument("--one", choices=(*BACKENDS, *PLUGINS), help=argparse.SUPPRESS)
    parser.set_defaults(mode="inference")
    arguments = parser.parse_args()
    mode, cold = arguments.mode, arguments.cold
    if arguments.one:
        print(measure(arguments.one, int(arguments.layers), mode, cold))
        return
    systems = SYSTEMS[mode]
    for layers in map(int, arguments.layers.split(",")):
        seconds: dict[str, list[float]] = {system: [] for system in systems}
        for i in range(arguments.rounds):
            for system in systems[:: 1 if i % 2 else -1]:
                seconds[system].append(in_process(system, layers, mode, cold))
        ratio = statistics.median(
            t / e for t, e in zip(seconds[systems[1]], seconds[systems[0]], strict=True)
        )
        medians = ", ".join(f"{s} {statistics.median(v):.3f} s" for s, v in seconds.items())
        print(f"{layers} layers: {medians}; x{ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
