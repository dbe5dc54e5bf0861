"""Values that rounding decides, as of a singular matrix: eager's own errors say how much.

An error is the difference from the same call in double precision. Eager's are measured for the
arguments as they are, and for all of them a few roundings larger or smaller: that keeps ties, zeros
and the order of numbers, and rounds in other places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tj_conformance.oracle.nearness import near

__all__ = ["STEPS", "Drawn", "Runs", "rounds", "scaled"]

STEPS = (1, -1, 2, -2, 3, -3)
"""The number of roundings by which arguments are larger."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Functions of a number of roundings: results of eager, and those in double precision."""

    eager: Callable[[int], Any]
    exact: Callable[[int], Any]


def rounds(got: Any, expected: Any, runs: Runs) -> bool:
    """Decide if the errors of ``got`` are like those of eager, which computed ``expected``.

    Those of each tensor are at most twice eager's, or eager lacks half of the digits. False where
    the program has no form in double precision.
    """
    try:
        known = [(expected, runs.exact(0))]
        if near(got, known, vague=True):
            return True
        known += ((runs.eager(step), runs.exact(step)) for step in STEPS)
        return near(got, known, vague=True)
    except Exception:  # it has no form in double precision
        return False


def scaled(tree: Any, step: int) -> Any:
    """``tree``, its floating-point numbers ``step`` roundings larger."""

    def each(x: torch.Tensor) -> torch.Tensor:
        if not step or not (x.is_floating_point() or x.is_complex()):
            return x
        factor = 1 + step * torch.finfo(x.dtype).eps
        return (x.detach() * factor).requires_grad_(x.requires_grad)

    return tree_map_only(torch.Tensor, each, tree)


class Drawn(TorchDispatchMode):
    """Random numbers as ``dtype`` has them: generators draw others in double precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator that draws in the data type, and widen its results."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or func._schema.is_mutable:
            return func(*args, **kwargs)
        narrow = tree_map_only(torch.Tensor, self._narrow, (args, kwargs))
        args, kwargs = tree_map_only(torch.dtype, self._named, narrow)
        return tree_map_only(torch.Tensor, _wide, func(*args, **kwargs))

    def _narrow(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype) if x.dtype is torch.float64 else x

    def _named(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype if dtype is torch.float64 else dtype


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x
