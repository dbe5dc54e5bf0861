"""Eager runs whose operations are rounded otherwise, to learn how far values depend on rounding."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Shaken"]

EXACT = frozenset({
    "abs", "neg", "floor", "ceil", "round", "trunc", "where", "clamp", "maximum", "minimum", "sign",
    "to", "reshape", "view", "cat", "stack", "fmax", "fmin", "copysign", "clone",
})  # fmt: skip
"""Functions whose results are not rounded."""

DIFFERENCES = frozenset({"gelu", "tanhshrink", "special_ndtr", "mish", "special_log_ndtr"})
"""Functions that subtract what they round: errors are those of a number near 1."""

CHOOSE = frozenset({
    "max", "min", "amax", "amin", "aminmax", "cummax", "cummin", "sort", "topk", "elu",
    "maximum", "minimum", "fmax", "fmin", "clamp",
})  # fmt: skip
"""Functions that choose among equal values, either of two zeros."""


class Shaken(TorchFunctionMode):
    """A mode in which each result is changed by up to a few units in its last place."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.units = random.Random(seed).choice((1, 2, 4))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        found = func(*args, **given)
        name = getattr(func, "__name__", "")
        if name.endswith("_") or given.get("out") is not None:
            return found
        for x in found if isinstance(found, tuple | list) else (found,):
            if isinstance(x, torch.Tensor) and not any(x is y for y in args):
                if name in CHOOSE:
                    self._sign(x)
                if name not in EXACT:
                    self._shake(x, least=1.0 if name in DIFFERENCES else 0.0)
        return found

    @torch.no_grad()
    def _shake(self, found: torch.Tensor, least: float) -> None:
        """Change ``found`` by its rounding, or that of ``least``.

        A view, or a tensor whose elements overlap, is left as it is.
        """
        x = found.detach()
        if found._is_view() or not (x.is_floating_point() or x.is_complex()):
            return
        if any(size > 1 and step == 0 for size, step in zip(x.shape, x.stride(), strict=True)):
            return
        noise = torch.rand(x.shape, dtype=torch.float64, generator=self.generator) * 2 - 1
        wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
        noise *= torch.finfo(x.dtype).eps * self.units
        # A sum with 0.0 would lose the sign of a zero.
        shaken = wide * (1 + noise) + least * noise if least else wide * (1 + noise)
        x.copy_(shaken.to(x.dtype))

    @torch.no_grad()
    def _sign(self, found: torch.Tensor) -> None:
        """Give zeros in ``found``, which is new, another sign."""
        if found.is_floating_point() and not found._is_view():
            found.detach().copy_(torch.where(found == 0, -found, found))
