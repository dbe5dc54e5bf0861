"""Memory of a train step: what is saved for the backward, and the peak, beside aot_eager.

    python benchmarks/memory.py [--workloads gpt,resnet] [--scale 1] [--fused]

Bytes are exact: saved ones as autograd's hooks see them, inputs, parameters and buffers left out,
each storage once; the peak is that of PyTorch's allocator in the third step, relative to its start.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tj_core as tj
import torch
from torch.profiler import ProfilerActivity, profile
from workloads import WORKLOADS

SYSTEMS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "aot_eager": lambda f: torch.compile(f, backend="aot_eager"),
    "tj": tj.jit,
}

FUSED = ("eager", "torch.compile", "tj, Inductor")
"""Systems with compiled kernels, beside eager."""


def system_of(name: str) -> Callable[[Any], Any]:
    """The system called ``name``."""
    if name == "torch.compile":
        return torch.compile
    if name == "tj, Inductor":
        return functools.partial(tj.jit, session=tj.Session(("inductor", "autograd", "torch")))
    return SYSTEMS[name]


@dataclass(frozen=True)
class Memory:
    """Bytes saved for the backward, and bytes at the worst moment of a step."""

    saved: int
    peak: int


def measure(workload: str, system: str, scale: float = 1.0) -> Memory:
    """The memory of a train step."""
    torch.manual_seed(0)
    model, (args, *_) = WORKLOADS[workload](scale)
    torch._dynamo.reset()
    step = system_of(system)(model)

    def run() -> None:
        step(*args).backward()
        model.zero_grad(set_to_none=False)  # the gradients are there from the first step on

    run()
    run()
    return Memory(saved_bytes(model, step, args), peak_bytes(run))


def saved_bytes(model: torch.nn.Module, step: Any, args: tuple[torch.Tensor, ...]) -> int:
    """Bytes of the storages that autograd is asked to save."""
    known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), *args)}
    sizes: dict[int, int] = {}
    alive = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(t)  # else another may get the same address
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = step(*args)
    loss.backward()
    model.zero_grad(set_to_none=False)
    return sum(sizes.values())


def peak_bytes(run: Callable[[], None]) -> int:
    """Largest net number of bytes that PyTorch's allocator has allocated during ``run``."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    events = recorded.profiler.kineto_results.events()
    now = most = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--fused", action="store_true", help="with kernels of Inductor")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for workload in arguments.workloads.split(","):
        print(line(workload, arguments.scale, FUSED if arguments.fused else SYSTEMS), flush=True)


def line(workload: str, scale: float, systems: tuple[str, ...] | Mapping[str, Any]) -> str:
    """Report the memory of ``systems``: the last is tj, the one before a peer."""
    found = {system: measure(workload, system, scale) for system in systems}
    *_, peer, mine = found
    lowest = min(m.peak for name, m in found.items() if name != mine)
    bytes_ = ", ".join(
        f"{name} {m.saved / 2**20:.2f} / {m.peak / 2**20:.2f}" for name, m in found.items()
    )
    return (
        f"{workload}: MiB saved / peak: {bytes_}; {mine} saves "
        f"x{found[mine].saved / found[peer].saved:.2f} of {peer}, peaks at "
        f"x{found[mine].peak / lowest:.2f} of the lowest"
    )


if __name__ == "__main__":
    main()
