"""Single operations in fused kernels: which take longer than in eager, and than with torch.compile.

    python benchmarks/operations.py [--only gt,roll] [--dtype float32] [--threads 1] [--gradient]
                                    [--compile] [--above 1.1]

Each operation stands in a small program that is fused, on about a million elements. Systems take
turns; figures are medians of nine rounds. Rows whose ratio to eager is larger than ``--above`` are
printed, the largest first. The program restarts itself with a tuned allocator.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
import torch.nn.functional as F
from timing import Timing, interleaved, with_tuned_allocator

SIDE = 1024
"""Rows and columns of a matrix."""

Program = Callable[..., Any]


def programs() -> dict[str, tuple[str, Program]]:
    """Each program with its arguments: names of `values`, separated by spaces."""
    n = SIDE
    return {
        "gt": ("x y", lambda x, y: (x > y, x.relu())),
        "logic": ("m k", lambda m, k: (m & k) | ~m),
        "isfinite": ("x", torch.isfinite),
        "where": ("m x y", lambda m, x, y: torch.where(m, x, y) * 2),
        "times mask": ("m x", lambda m, x: m * x / 0.9),
        "masked_fill": ("m x", lambda m, x: x.masked_fill(m, 0) + 1),
        "count": ("x", lambda x: (x > 0).sum(1)),
        "any": ("x", lambda x: (x > 2).any(1)),
        "div": ("x y", lambda x, y: x / y + 1),
        "floor_divide": ("x", lambda x: x // 2.5 + 1),
        "remainder": ("x", lambda x: x % 2.5 + 1),
        "pow": ("x y", lambda x, y: x.abs() ** y),
        "sqrt": ("x", lambda x: x.abs().sqrt()),
        "exp": ("x", lambda x: x.exp() + 1),
        "log": ("x", lambda x: x.abs().log()),
        "sin": ("x", lambda x: x.sin() + 1),
        "tanh": ("x", lambda x: x.tanh() + 1),
        "erf": ("x", lambda x: x.erf() + 1),
        "gelu": ("x", lambda x: F.gelu(x) + 1),
        "silu": ("x", lambda x: F.silu(x) + 1),
        "clamp": ("x", lambda x: x.clamp(-1, 1) + 1),
        "round": ("x", lambda x: x.round() + 1),
        "bytes to floats": ("b x", lambda b, x: b.to(x.dtype) / 255),
        "integers": ("i", lambda i: i * 2 + 1),
        "short integers": ("j", lambda j: (j << 2) ^ (j >> 1)),
        "integers divided": ("i", lambda i: i // 3 + 1),
        "sum": ("x", lambda x: (x * x).sum()),
        "sum of rows": ("x", lambda x: (x * x).sum(0)),
        "sum of columns": ("x", lambda x: (x * x).sum(1)),
        "var": ("x", lambda x: x.var(1) + 1),
        "max": ("x", lambda x: (x * 2).max(1)),
        "argmax": ("x", lambda x: (x * 2).argmax(0)),
        "softmax": ("x", lambda x: (x * 2).softmax(1)),
        "softmax of columns": ("x", lambda x: (x * 2).softmax(0)),
        "logsumexp": ("x", lambda x: (x * 2).logsumexp(1)),
        "cumsum": ("x", lambda x: (x * 2).cumsum(1) + 1),
        "layer_norm": ("x r", lambda x, r: F.layer_norm(x * 2, (n,), r, r)),
        "rms_norm": ("x r", lambda x, r: F.rms_norm(x * 2, (n,), r)),
        "group_norm": ("p", lambda p: F.group_norm(p * 2, 4)),
        "batch_norm": ("p", lambda p: F.batch_norm(p, None, None, training=True).relu()),
        "batch_norm, last": ("l", lambda p: F.batch_norm(p, None, None, training=True).relu()),
        "batch_norm, evaluation": ("l c", lambda p, c: F.batch_norm(p, *still(c)).relu()),
        "transpose": ("x y", lambda x, y: x.t() + y),
        "permute": ("p", lambda p: (p.permute(0, 2, 3, 1) * 2).contiguous()),
        "cat": ("x y", lambda x, y: torch.cat([x, y], 1) * 2),
        "stack": ("x y", lambda x, y: torch.stack([x, y], -1) * 2),
        "roll": ("x", lambda x: x.roll(3, 1) * 2),
        "flip": ("x", lambda x: x.flip(1) * 2),
        "pad": ("x", lambda x: F.pad(x, (1, 1)) * 2),
        "step": ("x", lambda x: x[:, ::2] * 2),
        "gather": ("x i", lambda x, i: x.gather(1, i) * 2),
        "rows at places": ("x i", lambda x, i: x[i[0]] * 2),
        "one_hot": ("i", lambda i: F.one_hot(i[0], n) * 2),
        "tril": ("x", lambda x: x.tril() * 2),
        "avg_pool": ("p", lambda p: F.avg_pool2d(p, 2) * 2),
        "max_pool": ("p", lambda p: F.max_pool2d(p, 2) * 2),
        "interpolate": ("p", lambda p: F.interpolate(p, scale_factor=2) * 2),
        "bilinear": ("p", lambda p: F.interpolate(p, scale_factor=2, mode="bilinear") * 2),
        "mse": ("x y", F.mse_loss),
        "cross_entropy": ("x i", lambda x, i: F.cross_entropy(x, i[0])),
        "glu": ("x", F.glu),
    }  # fmt: skip


def still(c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Statistics of a batch norm in evaluation, which have no gradient."""
    return c.detach(), (c * c + 1).detach()


def values(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Arguments of programs: matrices, masks, integers and pictures of about a million elements."""
    torch.manual_seed(0)
    places, pictures = torch.randint(0, SIDE, (SIDE, SIDE)), torch.randn(8, 16, 64, 128).to(dtype)
    return {
        "x": (torch.randn(SIDE, SIDE) * 3).to(dtype),
        "y": (torch.randn(SIDE, SIDE) * 3).to(dtype),
        "r": torch.randn(SIDE).to(dtype),
        "m": torch.rand(SIDE, SIDE) < 0.5,
        "k": torch.rand(SIDE, SIDE) < 0.5,
        "i": places,
        "j": places.int(),
        "b": places.to(torch.uint8),
        "p": pictures,
        "l": pictures.to(memory_format=torch.channels_last),
        "c": torch.randn(16).to(dtype),
    }


def measured(
    program: Program, args: list[torch.Tensor], compiled: bool, gradient: bool
) -> dict[str, Timing] | None:
    """Times of eager, tj and torch.compile; None if ``program`` has no gradient."""
    if gradient:
        args = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
    systems = {
        "eager": program,
        "tj": tj.jit(program, session=tj.Session(("inductor", "autograd", "torch"))),
    } | ({"torch.compile": torch.compile(program)} if compiled else {})

    def step(f: Program) -> bool:
        made = f(*args)
        made = made if isinstance(made, torch.Tensor) else made[-1]
        if gradient and made.requires_grad:
            needed = [a for a in args if a.requires_grad]
            torch.autograd.grad(made, needed, torch.ones_like(made), allow_unused=True)
        return bool(made.requires_grad)

    start = time.perf_counter()
    try:
        if step(program) != gradient:
            return None
    except RuntimeError as error:
        if "derivative for" not in str(error):
            raise
        return None
    number = max(1, int(0.01 / (time.perf_counter() - start)))
    calls = {name: functools.partial(step, f) for name, f in systems.items()}
    return interleaved(calls, baseline="eager", number=number, rounds=9)


def main() -> None:
    with_tuned_allocator()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gradient", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--above", type=float, default=1.1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    given, wanted = values(getattr(torch, arguments.dtype)), arguments.only.split(",")
    rows: dict[str, dict[str, Timing]] = {}
    for name, (names, program) in programs().items():
        if not arguments.only or any(name.startswith(start) for start in wanted):
            args = [given[n] for n in names.split()]
            found = measured(program, args, arguments.compile, arguments.gradient)
            if found is not None:
                rows[name] = found
    print("| | eager, ms | tj |" + (" torch.compile |" if arguments.compile else ""))
    print("|---|---|---|" + ("---|" if arguments.compile else ""))
    for name, times in sorted(rows.items(), key=lambda row: -row[1]["tj"].ratio):
        if times["tj"].ratio > arguments.above:
            figures = [f"{t.ratio:.2f}" for system, t in times.items() if system != "eager"]
            print(" | ".join([f"| {name}", f"{times['eager'].seconds * 1e3:.2f}", *figures]) + " |")
    print(f"\n{len(rows)} programs")


if __name__ == "__main__":
    main()
