"""Packages beside AOTInductor's: making one, loading it in a new process, and calls of many sizes.

    python benchmarks/packages.py [--layers 4] [--requests 400] [--rounds 3]

A small GPT's blocks in inference, with symbolic batch and length. Each system makes its package in
a process with an empty cache folder; then processes load it and answer requests of random sizes,
systems in turns. Printed are CPU seconds of making, C++ compilers included, the size of the file,
medians of the wall seconds of loading and of the first call, PyTorch's own import in neither, and
the median and 99th percentile of the milliseconds of a call. ``eager`` and ``torch.compile`` have
no package: they build the model, and ``torch.compile`` compiles in the first calls, which count.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from depth import Block
from first_call import computed

SYSTEMS = ("eager", "torch.compile", "AOTInductor", "tj")
PACKAGES = ("AOTInductor", "tj")
WIDTH, LENGTH, BATCH = 64, 64, 16


def model(layers: int) -> torch.nn.Module:
    """Blocks of a GPT, the same in each process."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Block(WIDTH, 4) for _ in range(layers))).eval()


def make(system: str, layers: int, file: Path) -> float:
    """Make the package of ``system``, and return the CPU seconds that it took."""
    net, x = model(layers), torch.rand(4, 32, WIDTH)
    start = computed()
    if system == "tj":
        import tj_core as tj

        with torch.no_grad():
            tj.export(net, (x,), dynamic={"input": (0, 1)}).save(file)
    else:
        sizes = torch.export.Dim("batch", min=2, max=BATCH), torch.export.Dim("length", min=2)
        with torch.no_grad():
            program = torch.export.export(net, (x,), dynamic_shapes=(dict(enumerate(sizes)),))
        torch._inductor.aoti_compile_and_package(program, package_path=str(file))
    return computed() - start


def loaded(system: str, layers: int, file: Path) -> Callable[[torch.Tensor], Any]:
    """The function of ``system``."""
    if system == "tj":
        import tj_core as tj

        return tj.load(file)
    if system == "AOTInductor":
        return torch._inductor.aoti_load_package(str(file))
    net = model(layers)
    return net if system == "eager" else torch.compile(net, dynamic=True)


def serve(system: str, layers: int, file: Path, requests: int) -> list[float]:
    """Seconds of loading, of the first call, and of each later call."""
    torch.set_num_threads(1)
    numbers = random.Random(0)
    start = time.perf_counter()
    f = loaded(system, layers, file)
    seconds = [time.perf_counter() - start]
    with torch.no_grad():
        for _ in range(requests + 1):
            x = torch.rand(numbers.randint(2, BATCH), numbers.randint(2, LENGTH), WIDTH)
            start = time.perf_counter()
            y = f(x)
            seconds.append(time.perf_counter() - start)
        torch.testing.assert_close(y, model(layers)(x), rtol=1e-4, atol=1e-4)
    return seconds


def in_process(step: str, system: str, args: argparse.Namespace, folder: Path) -> Any:
    """The result of ``step`` in a new process."""
    file = folder / f"{system}.{'tjp' if system == 'tj' else 'pt2'}"
    command = [sys.executable, __file__, "--step", step, "--one", system, "--file", str(file)]
    command += ["--layers", str(args.layers), "--requests", str(args.requests)]
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / f"{step}-{system}"), "TJ_CACHE_DIR": "none"}
    alone = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # else other processes compile, unseen
    bytecode = {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}  # whatever the environment says
    env = {**os.environ, **caches, **alone, **bytecode}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def report(args: argparse.Namespace, folder: Path) -> None:
    """Print a line for each system."""
    made = {system: in_process("make", system, args, folder) for system in PACKAGES}
    in_process("serve", "tj", args, folder)  # bytecode of all that is imported
    runs: dict[str, list[list[float]]] = {system: [] for system in SYSTEMS}
    for i in range(args.rounds):
        for system in SYSTEMS[:: 1 if i % 2 else -1]:
            runs[system].append(in_process("serve", system, args, folder))
    for system in SYSTEMS:
        load, first = (statistics.median(run[i] for run in runs[system]) for i in (0, 1))
        calls = sorted(second * 1000 for run in runs[system] for second in run[2:])
        middle, high = calls[len(calls) // 2], calls[int(len(calls) * 0.99)]
        packed = ""
        if system in made:
            (file,) = folder.glob(f"{system}.*")
            packed = f"made in {made[system]:.1f} s, {file.stat().st_size / 2**20:.2f} MiB, "
        print(
            f"{system:14}{packed}loaded in {load:.3f} s, first call {first:.3f} s, "
            f"p50 {middle:.2f} ms, p99 {high:.2f} ms",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", choices=("make", "serve"), help=argparse.SUPPRESS)
    parser.add_argument("--one", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step == "make":
        print(json.dumps(make(args.one, args.layers, args.file)))
    elif args.step == "serve":
        print(json.dumps(serve(args.one, args.layers, args.file, args.requests)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            report(args, Path(folder))


if __name__ == "__main__":
    main()
