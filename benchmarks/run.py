"""All workloads, in training and inference, side by side: eager, torch.compile, tj's executors.

    python benchmarks/run.py [--only gpt,decoding] [--rounds 15] [--scale 1] [--threads 1] [--quick]
                             [--plot FILE]

Systems take turns within one process. Figures are ratios of CPU seconds to eager's, medians with
the quartiles behind, and the CPU seconds of the first step, which compiles. A column has the lower
limit of a step's time, by `limits`. Results are compared with eager's before anything is timed. The
allocator is tuned, as by its README: the program restarts itself with the variables set. ``--only``
takes the workloads whose names start so; ``--quick`` is a scale of 0.25 and 3 rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tj_core as tj
import torch
from limits import limit
from timing import with_tuned_allocator
from users import CASES, Case

EXECUTORS = {
    "tj": (),
    "tj, Inductor": ("inductor",),
    "tj, Inductor, oneDNN": ("onednn", "inductor"),
}
"""Plugins of tj's systems, in addition to the common ones."""

AUTOCAST = ("autocast",) if importlib.util.find_spec("tj_autocast") else ()
"""The plugin for mixed precision, where it is installed."""


def systems() -> dict[str, Callable[[Any], Any]]:
    """Compared systems, by name; tj's, if their plugins are installed."""
    found: dict[str, Callable[[Any], Any]] = {"torch.compile": torch.compile}
    for name, executors in EXECUTORS.items():
        with contextlib.suppress(tj.TjError):
            session = tj.Session((*executors, "autograd", *AUTOCAST, "torch"))
            found[name] = functools.partial(tj.jit, session=session)
    with contextlib.suppress(ImportError):
        import thunder

        found["lightning-thunder"] = thunder.jit
    return found


@dataclass
class Row:
    """The rounds of one system on one workload, in CPU seconds."""

    first: float = 0.0
    rounds: list[float] = field(default_factory=list)

    def ratios(self, eager: Row) -> list[float]:
        """The ratios to ``eager``, round by round."""
        return [a / b for a, b in zip(self.rounds, eager.rounds, strict=True)]

    def median(self, eager: Row) -> float:
        """The median of the ratios to ``eager``."""
        return statistics.median(self.ratios(eager))

    def ratio(self, eager: Row) -> str:
        """The median of the ratios to ``eager``, and the quartiles."""
        low, middle, high = statistics.quantiles(self.ratios(eager), n=4)
        return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def measure(case: Case, rounds: int, scale: float) -> dict[str, Row]:
    """The rounds of every system; results are compared first. The ``limit`` has a single round."""
    torch.manual_seed(0)
    model, calls = case.make(scale)
    torch.compiler.reset()
    compiled = {name: make(model) for name, make in systems().items()}
    made: dict[str, Any] = {"eager": model} | compiled
    rows = {name: Row() for name in made}
    expected = case.run(model, model, calls)
    for name, f in made.items():
        start = time.process_time()
        got = case.run(model, f, calls)
        rows[name].first = time.process_time() - start
        torch.testing.assert_close(got, expected, rtol=case.tolerance, atol=case.tolerance / 10)
    names = list(made)
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            start = time.process_time()
            case.run(model, made[name], calls)
            rows[name].rounds.append(time.process_time() - start)
    least = limit(
        lambda: case.run(model, model, calls), lambda: [p.grad for p in model.parameters()]
    )
    return {"limit": Row(0.0, [least] * rounds)} | rows


def lines(cases: Mapping[str, Case], args: argparse.Namespace) -> Iterator[str]:
    """The report, a table in Markdown; figures go to a plot where one is wanted."""
    load = os.getloadavg()[0]
    yield f"{processor()}, {args.threads} threads, load {load:.1f}, torch {torch.__version__}"
    names = list(systems())
    yield f"\n| | eager, ms | limit | {' | '.join(f'{n} | first step, s' for n in names)} |"
    yield f"|---|---|---|{'---|---|' * len(names)}"
    figures: dict[str, dict[str, float]] = {}
    for workload, case in cases.items():
        rows = measure(case, args.rounds, args.scale)
        eager = rows.pop("eager")
        figures[workload] = {name: row.median(eager) for name, row in rows.items()}
        least = rows.pop("limit").median(eager)
        cells = [f"{row.ratio(eager)} | {row.first:.1f}" for row in rows.values()]
        middle = statistics.median(eager.rounds) * 1e3
        yield f"| {workload} | {middle:.1f} | {least:.3f} | {' | '.join(cells)} |"
    if args.plot:
        plot(figures, args.plot)
        yield f"\n{args.plot}"


def plot(figures: Mapping[str, Mapping[str, float]], path: str) -> None:
    """Bars for the systems and a mark for the limit, by workload, into the file ``path``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1 + 0.6 * len(figures)), layout="constrained")
    axes = figure.subplots()
    names = [name for name in next(iter(figures.values())) if name != "limit"]
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        places = [row + i * height for row in range(len(figures))]
        axes.barh(places, [found[name] for found in figures.values()], height, label=name)
    middles = [row + 0.4 - height / 2 for row in range(len(figures))]
    least = [found["limit"] for found in figures.values()]
    axes.plot(least, middles, "k|", markersize=20, label="limit")
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_yticks(middles, list(figures))
    axes.invert_yaxis()
    axes.set_xlabel("CPU seconds of a step, to eager's")
    figure.legend(loc="outside lower center", ncols=len(names) + 1)
    figure.savefig(path)


def processor() -> str:
    """The model of the CPU, where the system says it."""
    info = Path("/proc/cpuinfo")
    text = info.read_text("utf-8") if info.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    """Parse the command line, and print the report."""
    with_tuned_allocator()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names, or how they start, with commas between")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    parser.add_argument("--plot", metavar="FILE", help="a picture of the ratios; takes matplotlib")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.scale = 3, 0.25
    cases = {n: case for n, case in CASES.items() if n.startswith(tuple(args.only.split(",")))}
    if not cases:
        parser.error(f"no workload is called {args.only}; there are {', '.join(CASES)}")
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot takes matplotlib: pip install matplotlib")
    torch.set_num_threads(args.threads)
    for line in lines(cases, args):
        print(line, flush=True)


if __name__ == "__main__":
    main()
