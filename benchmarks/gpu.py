"""Correctness and speed on a GPU: one script for a machine that has one.

    python benchmarks/gpu.py --out gpu.json
    python benchmarks/gpu.py --device cpu --small      # the parts that work without a GPU

First PyTorch's database of operations is compared with eager, then small models in training are,
then GPT and Llama are timed in bfloat16, 256 to 2048 wide: tj with the plugins that fuse, also with
CUDA graphs, without either, torch.compile, and lightning-thunder where it is installed, in turns.
On the CPU, stand-ins replace nvFuser and CUDA graphs. The tables for docs/gpu.md are written beside
the file of ``--out``, with the ending `.md`.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import itertools
import json
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tj_core as tj
import torch
from depth import GPT
from timing import interleaved, table
from tj_conformance.databases.op_db import full_name
from tj_conformance.models import MODELS, step
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map_only
from workloads import Llama

CLOSE: Mapping[torch.dtype, dict[str, float]] = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 5e-2, "atol": 5e-2},
}


def plugins(device: str) -> tuple[Any, ...]:
    """The plugins that programs are jitted with."""
    if device != "cpu":
        return "nvfuser", "inductor", "autograd", "torch"
    from tj_nvfuser.testing.plugin import ReferencePlugin

    return ReferencePlugin(), "autograd", "torch"


def graphs(device: str) -> Any:
    """The plugin for CUDA graphs; on the CPU, the recorder."""
    if device != "cpu":
        return "cudagraph"
    from tj_cudagraph.testing.plugin import RecorderPlugin

    return RecorderPlugin()


def versions() -> dict[str, object]:
    """Versions and devices that the figures apply to."""
    from tj_nvfuser.availability import state

    found = state()
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "nvfuser": found.nvfuser or found.reason,
        "device": name,
    }


# ----------------------------------------------------------------------------- is it right?


def samples(op: Any, device: str, dtype: torch.dtype, count: int) -> Iterator[Any]:
    """Yield arguments of ``op`` that eager takes, with eager's results."""
    for sample in itertools.islice(op.sample_inputs(device, dtype), count):
        args = (sample.input, *sample.args)
        try:
            torch.manual_seed(0)
            yield args, sample.kwargs, op.op(*args, **sample.kwargs)
        except Exception:  # eager's own answer to a sample is not what is asked here
            continue


def operations(device: str, every: int, count: int) -> dict[str, Any]:
    """Run samples of PyTorch's database; return the number that are right, and the errors of the
    others.
    """
    session = tj.Session(
        plugins(device), overrides={"nvfuser": {"minimum": 1}} if device != "cpu" else {}
    )
    found: dict[str, Any] = {"right": 0, "wrong": {}, "raised": {}}
    for op, dtype in itertools.product(op_db[::every], CLOSE):
        if dtype not in op.supported_dtypes(torch.device(device).type):
            continue
        torch.compiler.reset()
        f = tj.jit(lambda *a, op=op, **k: op.op(*a, **k), session=session, dynamic=False)
        for args, kwargs, expected in samples(op, device, dtype, count):
            name = f"{full_name(op)} {dtype}"
            try:
                torch.manual_seed(0)
                torch.testing.assert_close(
                    f(*args, **kwargs), expected, equal_nan=True, **CLOSE[dtype]
                )
                found["right"] += 1
            except AssertionError as error:
                found["wrong"][name] = str(error).splitlines()[0]
            except Exception as error:
                found["raised"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found


def models(device: str) -> dict[str, str]:
    """Compare a training step of each small model with eager;
    return "right" or the error, by name.
    """
    found = {}
    for name, kind in MODELS.items():
        model = kind.build().train().to(device)
        batch = tree_map_only(torch.Tensor, lambda x: x.to(device), dict(kind.batch()))
        session = tj.Session(plugins(device))
        try:
            expected = step(model, model, batch, 0)["grads"]
            got = step(model, tj.jit(model, session=session), batch, 0)["grads"]
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
            found[name] = "right"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found


# ----------------------------------------------------------------------------- how fast is it?


MAKERS: Mapping[str, Callable[..., nn.Module]] = {"gpt": GPT, "llama": Llama}
"""Model makers by name: functions of layers, width, heads, words and length."""

WIDTHS = (256, 1024, 2048)
SMALL = 64
LAYERS = 2  # so that what compiles whole networks is done in a minute
WORDS, LENGTH = 32000, 512


def training(model: nn.Module, f: Callable[..., Any], batch: tuple[Any, ...]) -> Callable[[], None]:
    """Make the function that runs one training step and waits for the device."""

    def run() -> None:
        if batch[0].is_cuda:  # a call of torch.compile's graphs may overwrite results of the last
            torch.compiler.cudagraph_mark_step_begin()
        f(*batch).backward()
        model.zero_grad(set_to_none=True)
        if batch[0].is_cuda:
            torch.cuda.synchronize()

    return run


def systems(device: str, model: nn.Module) -> dict[str, Callable[..., Any]]:
    """Compared systems, by name; lightning-thunder where it is installed."""
    used = plugins(device)
    found = {
        "eager": model,
        "tj": tj.jit(model, session=tj.Session(used)),
        "tj, CUDA graphs": tj.jit(model, session=tj.Session((graphs(device), *used))),
        "tj, not fused": tj.jit(model, session=tj.Session(("autograd", "torch"))),
        "torch.compile": torch.compile(model),
    }
    if device != "cpu":
        rest = ("inductor", "autograd", "torch")
        found |= {
            "tj, Inductor": tj.jit(model, session=tj.Session(rest)),
            "tj, Inductor, CUDA graphs": tj.jit(model, session=tj.Session(("cudagraph", *rest))),
            "torch.compile, CUDA graphs": torch.compile(model, mode="reduce-overhead"),
        }
    if importlib.util.find_spec("thunder"):
        import thunder

        found["lightning-thunder"] = thunder.jit(model)
    return found


def speed(device: str, name: str, width: int, rounds: int, lock: Path | None) -> Mapping[str, Any]:
    """Times of a training step, by system; with ``lock``, no other process measures meanwhile."""
    torch.manual_seed(0)
    small = width == SMALL
    layers, words, length = (1, 128, 32) if small else (LAYERS, WORDS, LENGTH)
    model = MAKERS[name](layers, width, width // 64 if width > SMALL else 4, words, length)
    model.to(device=device, dtype=torch.bfloat16)
    batch = tuple(torch.randint(0, words, (4, length), device=device) for _ in range(2))
    calls = {s: training(model, f, batch) for s, f in systems(device, model).items()}
    works = {}
    for system, call in calls.items():
        try:
            for _ in range(6):
                call()
            works[system] = call
        except Exception as error:  # one that fails leaves the others' times
            print(f"{name}, {width} wide, {system}: {type(error).__name__}: {error}"[:500])
    with open(lock or os.devnull, "w") as file:
        if lock is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        for system in list(works):  # a fault of the device ends the process: say whose it is
            print(f"{name}, {width} wide: {system} again", flush=True)
            works[system]()
        timings = interleaved(works, baseline="eager", number=1 if small else 5, rounds=rounds)
    print(table(f"{name}, {width} wide, bfloat16, training", timings), flush=True)
    return timings


# ----------------------------------------------------------------------------- what is written


def markdown(found: Mapping[str, Any]) -> str:
    """The tables for docs/gpu.md."""
    lines = ["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in found["versions"].items()), ""]
    if counts := found.get("operations"):
        lines += ["| samples of op_db | |", "|---|---|", f"| right | {counts['right']} |"]
        lines += [f"| {kind} | {len(counts[kind])} |" for kind in ("wrong", "raised")]
    if "models" in found:
        lines += ["", "| model, a training step | |", "|---|---|"]
        lines += [f"| {name} | {said} |" for name, said in found["models"].items()]
    for title, timings in found.get("speed", {}).items():
        lines += ["", f"| {title} | milliseconds | of eager |", "|---|---|---|"]
        lines += [
            f"| {system} | {t['seconds'] * 1000:.2f} | {t['ratio']:.2f} |"
            for system, t in timings.items()
        ]
    return "\n".join(lines) + "\n"


PARTS = ("operations", "models", "speed")


def main() -> None:
    """Parse the command line, run all parts, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="little of everything")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--part", action="append", choices=PARTS, help="not all of it")
    parser.add_argument("--model", action="append", choices=tuple(MAKERS), help="whose speed")
    parser.add_argument("--width", action="append", type=int, choices=WIDTHS)
    parser.add_argument("--lock", type=Path, help="file that processes lock while they measure")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device")
    warnings.simplefilter("ignore")
    parts = args.part or PARTS
    rounds = 3 if args.small else args.rounds
    widths = (SMALL,) if args.small else args.width or WIDTHS
    found: dict[str, Any] = {"versions": versions()}
    if "operations" in parts:
        few = (40, 2) if args.small else (1, 8)
        found["operations"] = operations(args.device, *few)
    if "models" in parts:
        found["models"] = models(args.device)
    if "speed" in parts:
        found["speed"] = {
            f"{name}, {width} wide, bfloat16, training": {
                system: vars(timing)
                for system, timing in speed(args.device, name, width, rounds, args.lock).items()
            }
            for name, width in itertools.product(args.model or MAKERS, widths)
        }
    text = json.dumps(found, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text, "utf-8")
        args.out.with_suffix(".md").write_text(markdown(found), "utf-8")


if __name__ == "__main__":
    main()
