"""Cost of the frontend ``fx``: compilation of a graph of ten calls, and a call.

    python benchmarks/graphs.py [--rounds N]

Medians over graphs of one form, the session's expansions remembered after the first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import tj_core as tj
import torch
from timing import interleaved, table


def program(x: torch.Tensor, y: torch.Tensor) -> Any:
    a = (x + y).relu()
    b = torch.matmul(a, y)
    c = (a * b.sum(-1, keepdim=True)).tanh()
    return c.transpose(0, 1).contiguous().view(-1).mean(), c


def compile_milliseconds(session: Any, x: torch.Tensor, y: torch.Tensor) -> float:
    """Milliseconds from a new GraphModule to its first result."""
    graph = torch.fx.symbolic_trace(program)
    start = time.perf_counter()
    tj.jit(graph, frontend="fx", session=session)(x, y)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    session = tj.Session()
    x, y = torch.rand(4, 4), torch.rand(4, 4)
    cold = compile_milliseconds(session, x, y)
    warm = statistics.median(compile_milliseconds(session, x, y) for _ in range(rounds))
    print(f"compile and run ten calls: {warm:.1f} ms, the first time {cold:.1f} ms")
    graph = torch.fx.symbolic_trace(program)
    systems = {
        "eager": program,
        "GraphModule": graph,
        "tj (fx)": tj.jit(graph, frontend="fx", session=session),
        "tj (dynamo)": tj.jit(program, session=session),
    }
    calls = {name: (lambda f=f: f(x, y)) for name, f in systems.items()}
    print(table("ten calls", interleaved(calls, baseline="eager", number=300, rounds=rounds)))


if __name__ == "__main__":
    main()
