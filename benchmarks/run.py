"""All workloads, in training and inference, side by side: eager, torch.compile, tj's executors.

    python benchmarks/run.py [--only gpt,resnet] [--rounds 15] [--scale 1] [--threads 1]

Systems take turns within one process. Figures are ratios of CPU seconds to eager's, medians with
the quartiles behind, and the CPU seconds of the first step, which compiles. Results are compared
with eager's before anything is timed. The allocator is tuned, as by its README: the program starts
itself again with the variables.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tj_core as tj
import torch
from workloads import WORKLOADS

ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""The default allocator gives memory back in every step, which costs all systems at random."""


EXECUTORS = {
    "tj": (),
    "tj, Inductor": ("inductor",),
    "tj, Inductor, oneDNN": ("onednn", "inductor"),
}
"""The plugins of tj's systems, beside those that all have."""


def systems() -> dict[str, Callable[[Any], Any]]:
    """What is compared, by name; tj's, as far as the plugins are installed."""
    found: dict[str, Callable[[Any], Any]] = {"torch.compile": torch.compile}
    for name, plugins in EXECUTORS.items():
        with contextlib.suppress(tj.TjError):
            session = tj.Session((*plugins, "autograd", "torch"))
            found[name] = functools.partial(tj.jit, session=session)
    return found


@dataclass
class Row:
    """The rounds of one system on one workload, in CPU seconds."""

    first: float = 0.0
    rounds: list[float] = field(default_factory=list)

    def ratio(self, eager: Row) -> str:
        """The median of the ratios to ``eager``, and the quartiles."""
        ratios = [a / b for a, b in zip(self.rounds, eager.rounds, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def train(model: torch.nn.Module, f: Any, calls: Sequence[tuple[Any, ...]]) -> torch.Tensor:
    """A step without an optimizer: losses and gradients."""
    for p in model.parameters():
        p.grad = None
    losses = []
    for args in calls:
        loss: torch.Tensor = f(*args)
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses)


def infer(model: torch.nn.Module, f: Any, calls: Sequence[tuple[Any, ...]]) -> torch.Tensor:
    """Forwards without gradients."""
    with torch.no_grad():
        return torch.stack([f(*args) for args in calls])


def measure(workload: str, run: Any, rounds: int, scale: float) -> dict[str, Row]:
    """The rounds of every system; results are compared first."""
    torch.manual_seed(0)
    model, calls = WORKLOADS[workload](scale)
    torch.compiler.reset()
    made: dict[str, Any] = {"eager": model} | {n: make(model) for n, make in systems().items()}
    rows = {name: Row() for name in made}
    expected = run(model, model, calls)
    for name, f in made.items():
        start = time.process_time()
        got = run(model, f, calls)
        rows[name].first = time.process_time() - start
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    names = list(made)
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            start = time.process_time()
            run(model, made[name], calls)
            rows[name].rounds.append(time.process_time() - start)
    return rows


def lines(args: argparse.Namespace) -> Iterator[str]:
    """The report, a table in Markdown."""
    load = os.getloadavg()[0]
    yield f"{processor()}, {args.threads} threads, load {load:.1f}, torch {torch.__version__}"
    names = list(systems())
    yield f"\n| | eager, ms | {' | '.join(f'{n} | first step, s' for n in names)} |"
    yield f"|---|---|{'---|---|' * len(names)}"
    for workload in args.only.split(","):
        for what, run in (("training", train), ("inference", infer)):
            rows = measure(workload, run, args.rounds, args.scale)
            eager = rows.pop("eager")
            cells = [f"{row.ratio(eager)} | {row.first:.1f}" for row in rows.values()]
            middle = statistics.median(eager.rounds) * 1e3
            yield f"| {workload}, {what} | {middle:.1f} | {' | '.join(cells)} |"


def processor() -> str:
    """The model of the CPU, where the system says it."""
    info = Path("/proc/cpuinfo")
    text = info.read_text("utf-8") if info.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    """Parse the command line, and print the report."""
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for line in lines(args):
        print(line, flush=True)


if __name__ == "__main__":
    main()
