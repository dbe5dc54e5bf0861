"""Two linear layers with a gelu between, in inference, by executor of the products.

    python benchmarks/products.py [--rounds 30] [--threads 1]

Beside eager: tj with PyTorch's products, with tj-onednn as it measures, with frozen parameters, and
with activations in the layers' calls. Medians, in turns; with one thread, of its CPU time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
from timing import interleaved, table
from torch import nn

SYSTEMS: dict[str, dict[str, object] | None] = {
    "tj": None,
    "tj, oneDNN": {},
    "tj, oneDNN, frozen": {"freeze": True},
    "tj, oneDNN, epilogues": {"epilogues": True},
}
"""Options of tj-onednn; None is without it."""


def jitted(model: nn.Module, options: dict[str, object] | None) -> Any:
    """``model`` in a session with these options, without fusion."""
    plugins = ("autograd", "torch") if options is None else ("onednn", "autograd", "torch")
    overrides = {} if options is None else {"onednn": options}
    return tj.jit(model, session=tj.Session(plugins, overrides=overrides), dynamic=False)


def calls(model: nn.Module, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Timed functions by name; their results are compared with eager's first."""
    expected = model(x)
    found: dict[str, Callable[[], object]] = {"eager": lambda: model(x)}
    for name, options in SYSTEMS.items():
        f = jitted(model, options)
        torch.testing.assert_close(f(x), expected, rtol=2e-2, atol=2e-2)
        found[name] = lambda f=f: f(x)  # type: ignore[misc]
    return found


def main() -> None:
    """Parse the command line, and print a table for each data type and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    for dtype in (torch.float32, torch.bfloat16):
        for rows in (1, 16, 256):
            model = nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 1024)).to(dtype)
            x = torch.randn(rows, 1024, dtype=dtype)
            with torch.no_grad():
                timings = interleaved(
                    calls(model, x), baseline="eager", number=3, rounds=args.rounds, clock=clock
                )
            print(table(f"{dtype}, {rows} rows", timings), flush=True)


if __name__ == "__main__":
    main()
