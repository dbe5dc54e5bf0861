"""The backwards of a compilation, which are compiled when they first run: so a step is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import PackageError
from tj_core.internal import Track

if TYPE_CHECKING:
    from tj_core.extend import Compilation, TrainingParts

__all__ = ["backwards_of", "run_backward"]


def run_backward(compilation: Compilation, values: Sequence[Any]) -> None:
    """Run forward and backward once, on copies of ``values``, with the random numbers at hand."""
    for programs in compilation.further:
        programs[programs.default]  # tangents within the program may come in another form
    copies = [_copy(value) for value in values]
    devices = {v.device.index for v in values if isinstance(v, torch.Tensor) and v.is_cuda}
    with torch.random.fork_rng(sorted(devices)), torch.enable_grad():
        # A leaf that requires a gradient may not be written: a step writes to none either.
        results = [r for r in compilation.function(*copies) if _has_gradient(r)]
        wrt = [c for c in copies if _has_gradient(c)]
        tangents = [torch.ones_like(r) for r in results]
        torch.autograd.grad(results, wrt, tangents, allow_unused=True)


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    ).copy_(value.detach())
    return made.requires_grad_(value.requires_grad)


def backwards_of(compilation: Compilation, parts: TrainingParts) -> dict[str, Track]:
    """The compiled backwards by name.

    :raises PackageError: if one was not compiled.
    """
    found = {}
    for node in parts.nodes:
        track = compilation.others[node.name]
        if not isinstance(track, Track):
            raise PackageError("the backward was not compiled in a step, as no tangent arrives")
        found[node.name] = track
    return found
