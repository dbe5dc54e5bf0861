"""Memory of a train step: what is saved for the backward, and the peak, beside aot_eager.

    python benchmarks/memory.py [--workloads gpt,resnet] [--scale 1]

Bytes are exact: saved ones as autograd's hooks see them, inputs, parameters and buffers left out,
each storage once; the peak is that of PyTorch's allocator in a step after the first two, over what
there is before it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
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
    step = SYSTEMS[system](model)

    def run() -> None:
        step(*args).backward()
        model.zero_grad(set_to_none=False)  # the gradients are there from the first step on

    run()
    run()
    return Memory(saved_bytes(model, step, args), peak_bytes(run))


def saved_bytes(model: torch.nn.Module, step: Any, args: tuple[torch.Tensor, ...]) -> int:
    """Bytes of the tensors that autograd is asked to keep."""
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
    """Bytes that PyTorch's allocator has given out in ``run`` at the worst moment."""
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
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for workload in arguments.workloads.split(","):
        found = {system: measure(workload, system, arguments.scale) for system in SYSTEMS}
        tj, lowest = found["tj"], min(found["eager"].peak, found["aot_eager"].peak)
        bytes_ = ", ".join(
            f"{name} {m.saved / 2**20:.2f} / {m.peak / 2**20:.2f}" for name, m in found.items()
        )
        print(
            f"{workload}: MiB saved / peak: {bytes_}; tj saves "
            f"x{tj.saved / found['aot_eager'].saved:.2f} of aot_eager, peaks at "
            f"x{tj.peak / lowest:.2f} of the lower of the two",
            flush=True,
        )


if __name__ == "__main__":
    main()
