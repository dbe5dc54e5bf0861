"""A small GPT in inference, its linear layers in float32 and in int8.

    python benchmarks/int8.py [--width 256] [--rows 1,32] [--threads 1] [--rounds 15] [--unfused]

Rows are tokens of one sequence. ``layers`` are the linear layers alone, one after the other, each
on its own input; ``gpt`` is the whole network. Medians, in turns, with one thread of its CPU time;
behind them the relative error of the result, by `tj.compare`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
from depth import GPT
from timing import interleaved, table
from torch import nn

SYSTEMS: dict[str, dict[str, Any]] = {
    "tj": {},
    "tj, int8 weights": {"int8_weights": ["*"]},
    "tj, int8": {"int8": ["*"]},
}
"""Options of tj-onednn."""

VOCABULARY = 2048


class Logits(nn.Module):
    """The network of a GPT without its loss; tokens ``[1, rows]`` in."""

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        gpt = self.gpt
        x = gpt.tokens(index) + gpt.positions(torch.arange(index.shape[1]))
        for block in gpt.blocks:
            x = block(x)
        logits: torch.Tensor = gpt.head(gpt.norm(x))
        return logits


class Layers(nn.Module):
    """The linear layers of a GPT; two matrices in, of its width and of four times that."""

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.layers = nn.ModuleList([m for m in gpt.modules() if isinstance(m, nn.Linear)])

    def forward(self, narrow: torch.Tensor, wide: torch.Tensor) -> list[torch.Tensor]:
        of = {x.shape[1]: x for x in (narrow, wide)}
        return [layer(of[layer.in_features]) for layer in self.layers]


def programs(width: int, rows: int) -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """The timed modules and their arguments."""
    torch.manual_seed(0)
    gpt = GPT(4, width, 8, VOCABULARY, max(rows, 1)).eval()
    return {
        "layers": (Layers(gpt), (torch.randn(rows, width), torch.randn(rows, 4 * width))),
        "gpt": (Logits(gpt), (torch.randint(0, VOCABULARY, (1, rows)),)),
    }


def main() -> None:
    """Parse the command line, and print a table for each program and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rows", default="1,32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--unfused", action="store_true", help="without tj-inductor")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    plugins = ("onednn", *(() if args.unfused else ("inductor",)), "autograd", "torch")
    for rows in map(int, args.rows.split(",")):
        for name, (model, inputs) in programs(args.width, rows).items():
            calls: dict[str, Callable[[], object]] = {"eager": lambda m=model, i=inputs: m(*i)}  # type: ignore[misc]
            errors = {}
            with torch.no_grad():
                for system, options in SYSTEMS.items():
                    session = tj.Session(plugins, overrides={"onednn": options})
                    f = tj.jit(model, session=session, dynamic=False)
                    errors[system] = tj.compare(f, model, inputs).worst.figures.relative
                    calls[system] = lambda f=f, i=inputs: f(*i)  # type: ignore[misc]
                timings = interleaved(
                    calls, baseline="eager", number=10, rounds=args.rounds, clock=clock
                )
            title = f"{name}, width {args.width}, {rows} rows, {args.threads} threads"
            print(table(title, timings))
            print("  relative error:", {k: f"{e:.2g}" for k, e in errors.items()}, flush=True)


if __name__ == "__main__":
    main()
