"""Seconds of a first training step in a second process, with the caches that the first has filled.

    python benchmarks/warm.py [--layers 2,16] [--rounds 3]

A small GPT, forward and backward, by torch.compile and by tj with Inductor. Each system has cache
folders of its own, which one process fills before others are measured. Figures are CPU seconds of
the process, imports of a system included, without those of the C++ compiler. Python keeps the
bytecode of imports in a folder of the benchmark, whatever the environment sets: with
``PYTHONDONTWRITEBYTECODE`` it would compile all of PyTorch anew in each process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SYSTEMS = ("torch.compile", "tj")


def measure(system: str, layers: int) -> float:
    """Seconds of the first step of a model with ``layers`` layers, in this process."""
    import torch
    from depth import GPT

    torch.set_num_threads(1)
    model = GPT(layers)
    index, target = torch.randint(0, 128, (2, 32)), torch.randint(0, 128, (2, 32))
    model(index, target).backward()
    start = time.process_time()
    if system == "tj":
        import tj_core as tj

        step = tj.jit(model, session=tj.Session(("inductor", "autograd", "torch")))
    else:
        step = torch.compile(model)
    step(index, target).backward()
    return time.process_time() - start


def in_process(system: str, layers: int, folder: Path) -> float:
    """`measure` in a new process whose caches are in ``folder``."""
    names = {"TORCHINDUCTOR_CACHE_DIR": "kernels", "TJ_CACHE_DIR": "tj"}
    caches = {name: str(folder / kind) for name, kind in names.items()}
    said = python([__file__, "--one", system, "--layers", str(layers)], folder.parent, caches)
    return float(said.split()[-1])


def python(arguments: list[str], folder: Path, variables: dict[str, str]) -> str:
    """Run a new process that keeps bytecode in ``folder``; return what it prints."""
    env = {**os.environ, **variables, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, *arguments], env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def report(layers: int, rounds: int, folder: Path) -> str:
    """One line: the seconds of the systems, in turns, and the ratio."""
    python(["-c", "import torch._inductor.compile_fx"], folder, {})
    first = {system: in_process(system, layers, folder / system) for system in SYSTEMS}
    later: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    for i in range(rounds):
        for system in SYSTEMS[:: 1 if i % 2 else -1]:
            later[system].append(in_process(system, layers, folder / system))
    pairs = zip(later["tj"], later["torch.compile"], strict=True)
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    texts = (f"{s} {first[s]:.1f}, then {statistics.median(later[s]):.2f} s" for s in SYSTEMS)
    return f"{layers} layers: {'; '.join(texts)}; second process x{ratio:.2f}"


def main() -> None:
    """Parse the command line, and print a line for each depth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", default="2,16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=SYSTEMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(measure(args.one, int(args.layers)))
        return
    for layers in map(int, args.layers.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            print(report(layers, args.rounds, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
