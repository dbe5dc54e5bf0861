"""Operators as formulas of others, where Inductor makes worse kernels of its own."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = ["formulas"]

Formula = Callable[..., Any]

MEAN = 1
"""The reduction of a loss to its mean, as operators are told it."""


def nll_loss_backward(
    grad: torch.Tensor,
    inputs: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """The gradient of the inputs ``[n, classes]`` or ``[classes]``.

    What is not zero is found by comparing classes with targets, a part of any kernel. Inductor
    decomposes it with a scatter: into zeros that are written to memory before, and read again. That
    is a pattern which its passes over whole programs replace; those do not run on regions.
    """
    classes = 0 if inputs.dim() < 2 else 1
    if reduction == MEAN:
        grad = grad / total_weight
    target = target.unsqueeze(classes)
    kept = target != ignore_index
    places = torch.arange(inputs.shape[classes], device=inputs.device)
    here = torch.where(kept, target, 0) == _along(places, inputs, classes)
    one = torch.where(here, -torch.ones((), dtype=inputs.dtype, device=inputs.device), 0)
    if inputs.dim() > grad.dim() > 0:
        grad = grad.unsqueeze(classes)
    if weight is not None:
        grad = grad * _along(weight, inputs, classes)
    return one * torch.where(kept, grad, 0)


IN_CACHE = 8 << 20
"""Bytes that are read a second time out of a cache near a core, at most."""

NEAR = 128 << 20
"""A last cache that is larger is shared by many cores, and far from each: its bytes come slowly."""


CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
"""Where Linux says which caches the first core reads."""


@functools.cache
def in_cache() -> int:
    """Bytes that are read a second time out of a cache, by the caches that this processor has.

    `IN_CACHE` where the system does not say which.
    """
    sizes: dict[int, int] = {}
    for cache in CACHES.glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            level, size = ((cache / name).read_text().strip() for name in ("level", "size"))
            sizes[int(level)] = int(size.removesuffix("K")) << 10
    return min(IN_CACHE, sizes.get(2, IN_CACHE)) if sizes.get(3, 0) > NEAR else IN_CACHE


def var_mean(
    x: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Any:
    """The variance and the mean along ``dim``, by two sums.

    Inductor computes both in one pass, by Welford's formula, whose steps divide and wait for each
    other. On a CPU two passes are faster where the second finds ``x`` in the cache. Sizes that are
    symbols, other devices, complex numbers: left to Inductor.
    """
    fixed = all(isinstance(n, int) for n in x.shape)
    if not fixed or x.device.type != "cpu" or x.is_complex():
        return NotImplemented
    if x.numel() * x.element_size() > in_cache():
        return NotImplemented
    dims = [d % x.dim() for d in dim or ()] if x.dim() else []
    dims = dims or list(range(x.dim()))
    count = math.prod(x.shape[d] for d in dims)
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    # Factors: what is small is computed again for each element, where a division takes longest.
    mean = wide.sum(dims, keepdim=True) * _inverse(count)
    distance = wide - mean
    divisor = max(0.0, count - (1.0 if correction is None else float(correction)))
    variance = (distance * distance).sum(dims, keepdim=True) * _inverse(divisor)
    if not keepdim:
        variance, mean = (v.squeeze(dims) for v in (variance, mean))
    return variance.to(x.dtype), mean.to(x.dtype)


def _inverse(number: float) -> float:
    """``1 / number``; of zero, by which a sum is divided, what makes the same of the sum."""
    return 1.0 / number if number else math.inf


def floor_divided(a: Any, b: Any) -> Any:
    """``a // b`` of floats as PyTorch's kernels compute it, by a remainder, as Python does.

    The floor of a quotient that is rounded may be one more (``1.0 // 0.1`` is 9), and of an
    infinite number it is no NaN.
    """
    dtype = torch.result_type(a, b)
    if not dtype.is_floating_point:
        return NotImplemented
    a, b = _wide(a, b, dtype)
    rest = torch.fmod(a, b)
    whole = (a - rest) / b
    whole = torch.where((rest != 0) & ((b < 0) != (rest < 0)), whole - 1, whole)
    below = torch.floor(whole)
    below = torch.where(whole - below > 0.5, below + 1, below)
    quotient = a / b
    found = torch.where(whole == 0, torch.copysign(torch.zeros_like(quotient), quotient), below)
    return torch.where(b == 0, quotient, found).to(dtype)


def remainder(a: Any, b: Any) -> Any:
    """``a % b`` of floats, by C's remainder; Inductor's vectors make NaN of infinite divisors."""
    dtype = torch.result_type(a, b)
    if not dtype.is_floating_point:
        return NotImplemented
    a, b = _wide(a, b, dtype)
    rest = torch.fmod(a, b)
    return torch.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest).to(dtype)


def _wide(a: Any, b: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Two operands, of which one is a tensor, as tensors in the type that kernels divide in."""
    device = (a if isinstance(a, torch.Tensor) else b).device
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    first, second = (torch.as_tensor(v, dtype=wide, device=device) for v in (a, b))
    return first, second


def by_mode(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """``a / b``, rounded in some way; only for the one that is `floor_divided`."""
    return floor_divided(a, b) if rounding_mode == "floor" else NotImplemented


def without_zero_factors(formula: Formula) -> Formula:
    """``formula(x, a, b, beta, alpha)`` of a sum of multiples, where neither factor is zero.

    PyTorch's kernels do not read what is multiplied by zero; in a formula a NaN would be left of
    it. Else the kernel is called.
    """

    def changed(*args: Any, beta: Any = 1, alpha: Any = 1, **more: Any) -> Any:
        if beta == 0 or alpha == 0:
            return NotImplemented
        return formula(*args, beta=beta, alpha=alpha, **more)

    return changed


def else_known(formula: Formula, known: Formula | None) -> Formula:
    """``formula``, and the ``known`` one where it says nothing: Inductor has no kernel then."""

    def changed(*args: Any, **more: Any) -> Any:
        made = formula(*args, **more)
        return known(*args, **more) if made is NotImplemented and known is not None else made

    return changed


def of_bytes(operator: Any) -> Formula:
    """``operator``, which says for elements that are not zero, of bytes: a byte, as in eager.

    Inductor's kernels return a truth value, of whatever type the elements are.
    """

    def changed(x: torch.Tensor, *args: Any, **more: Any) -> Any:
        if x.dtype is not torch.uint8:
            return NotImplemented
        return operator(x.to(torch.bool), *args, **more).to(torch.uint8)

    return changed


def for_negative_index(formula: Formula, becomes: Callable[[Any, int], Any]) -> Formula:
    """``formula(x, dim, index, ...)``, where a negative index is what it ``becomes``.

    That is a function of the index and the size of ``dim``.
    """

    def changed(x: torch.Tensor, dim: int, index: torch.Tensor, *args: Any, **more: Any) -> Any:
        size = x.shape[dim] if x.dim() else 1
        index = torch.where(index < 0, becomes(index, size), index)
        return formula(x, dim, index, *args, **more)

    return changed


def behind_the_end(index: Any, size: int) -> Any:
    """What is refused: PyTorch's kernels refuse a negative index, Inductor's formula takes it."""
    return size


def from_the_end(index: Any, size: int) -> Any:
    """What a negative index means."""
    return index + size


def _along(values: torch.Tensor, inputs: torch.Tensor, dim: int) -> torch.Tensor:
    """``values`` along dimension ``dim`` of ``inputs``."""
    return values.view([-1 if i == dim else 1 for i in range(inputs.dim())])


aten = torch.ops.aten

DIVISIONS: dict[Any, Formula] = {
    aten.floor_divide.default: floor_divided,
    aten.remainder.Tensor: remainder,
    aten.remainder.Scalar: remainder,
    aten.remainder.Scalar_Tensor: remainder,
    aten.div.Tensor_mode: by_mode,
    aten.div.Scalar_mode: by_mode,
}
NO_NEGATIVE_INDEX = (
    aten.index_add.default,
    aten.index_copy.default,
    aten.index_reduce.default,
    aten.index_select.default,
)
SAY_WHETHER = (
    aten.all.default,
    aten.all.dim,
    aten.all.dims,
    aten.any.default,
    aten.any.dim,
    aten.any.dims,
)
FROM_THE_END = (aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
"""What takes a negative index, by a formula that copies to an index; that takes none."""


def formulas(known: Mapping[Any, Formula]) -> dict[Any, Formula]:
    """What stands in the place of the formulas that are ``known``, by operator."""
    ours = DIVISIONS | {op: of_bytes(op) for op in SAY_WHETHER}
    return {
        aten.nll_loss_backward.default: nll_loss_backward,
        aten.var_mean.correction: var_mean,
        aten.addmm.default: without_zero_factors(known[aten.addmm.default]),
        **{op: else_known(formula, known.get(op)) for op, formula in ours.items()},
        **{op: for_negative_index(known[op], behind_the_end) for op in NO_NEGATIVE_INDEX},
        **{op: for_negative_index(known[op], from_the_end) for op in FROM_THE_END},
    }
