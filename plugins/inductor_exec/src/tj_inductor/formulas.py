"""Decompositions for operators where Inductor's own make slower or different kernels."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from tj_inductor.activations import ACTIVATIONS, MEAN
from tj_inductor.arithmetic import COMPARISONS, DIVISIONS, SIGNS, Formula, widened
from tj_inductor.bags import bag_backward
from tj_inductor.mixed import (
    AT_PLACES,
    CONVERSIONS,
    ENDS,
    FACTORS,
    IN_PARTS,
    MULTIPLES,
    OF_SMALL,
    PROMOTED,
    WITH_HALVES,
    converted,
    in_common_type,
    in_float,
)
from tj_inductor.moves import MOVES
from tj_inductor.norms import group_norm_backward
from tj_inductor.pools import POOLS, average, max_pool
from tj_inductor.sums import SUMS, sum_of_rows

__all__ = ["NEEDED", "REPLACED", "existing", "formulas"]


def nll_loss_backward(
    grad: torch.Tensor,
    inputs: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """Gradient of the inputs ``[n, classes]`` or ``[classes]`` of `nll_loss`.

    Classes are compared with targets, an elementwise operation that fuses. Inductor's decomposition
    scatters into zeros that are written to memory first, and read again. Its passes over whole
    programs replace that pattern; they do not run on regions.
    """
    classes = 0 if inputs.dim() < 2 else 1
    if reduction == MEAN:
        grad = grad / total_weight
    target = target.unsqueeze(classes)
    # An ignored target, -100 by default, is no class; 0 is one for every input.
    kept = target != ignore_index
    places = torch.arange(inputs.shape[classes], device=inputs.device)
    here = torch.where(kept, target, 0) == _along(places, inputs, classes)
    # With `reduction="none"` each sample has a gradient of its own.
    if inputs.dim() > grad.dim() > 0:
        grad = grad.unsqueeze(classes)
    if weight is not None:
        grad = grad * _along(weight, inputs, classes)
    # No product with one and zeros: other classes of an infinite tangent have zero as gradient.
    return torch.where(here & kept, -grad, 0)


IN_CACHE = 8 << 20
"""Largest number of bytes whose second read comes from a cache near a core."""

NEAR = 128 << 20
"""Size above which a last-level cache counts as slow: many cores
share it, and it is far from each.
"""


CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
"""Linux's description of the caches of the first core."""


@functools.cache
def in_cache() -> int:
    """Bytes whose second read comes from a near cache, by the caches of this processor.

    It is `IN_CACHE` where the system does not describe them.
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
    """Variance and mean along ``dim``, by two sums.

    Inductor computes both in one pass by Welford's formula, whose steps divide and depend on each
    other. On a CPU two passes are faster if the second finds ``x`` in the cache. Symbolic sizes,
    other devices and complex numbers are left to Inductor.
    """
    fixed = all(isinstance(n, int) for n in x.shape)
    if not fixed or x.device.type != "cpu" or x.is_complex():
        return NotImplemented
    if x.numel() * x.element_size() > in_cache():
        return NotImplemented
    dims = [d % x.dim() for d in dim or ()] if x.dim() else []
    # An empty list means all dimensions, as None does.
    dims = dims or list(range(x.dim()))
    count = math.prod(x.shape[d] for d in dims)
    wide = widened(x)
    # Factors: what is small is computed again for each element, where a division takes longest.
    mean = wide.sum(dims, keepdim=True) * _inverse(count)
    distance = wide - mean
    divisor = max(0.0, count - (1.0 if correction is None else float(correction)))
    squares = (distance * distance).sum(dims, keepdim=True)
    variance = squares * _inverse(divisor)
    # Welford's steps subtract infinities, unless the only one comes last: eager's mean is NaN.
    if count > 1 and not _plain_mean.get():
        mean = torch.where(squares.isnan(), squares, mean)
    if not keepdim:
        variance, mean = (v.squeeze(dims) for v in (variance, mean))
    return variance.to(x.dtype), mean.to(x.dtype)


def variance(x: torch.Tensor, *args: Any, **more: Any) -> Any:
    """The first result of `var_mean`."""
    found = var_mean(x, *args, **more)
    return found if found is NotImplemented else found[0]


def _inverse(number: float) -> float:
    """``1 / number``; infinity for 0, which makes the same of a sum as the division."""
    return 1.0 / number if number else math.inf


def atanh(x: torch.Tensor) -> Any:
    """Inverse hyperbolic tangent of floats by `log1p`.

    Inductor's vector code takes the logarithm of a quotient near 1, which is 0 for small ``x``.
    """
    return _by_log1p(x, lambda x: torch.copysign(torch.log1p(2 * x.abs() / (1 - x.abs())) / 2, x))


def acosh(x: torch.Tensor) -> Any:
    """Inverse hyperbolic cosine of floats; Inductor's vector code squares, and overflows."""
    return _by_log1p(x, _acosh)


def _acosh(x: torch.Tensor) -> torch.Tensor:
    above = x - 1
    found = torch.log1p(above + torch.sqrt(above) * torch.sqrt(above + 2))
    return torch.where(x > LARGE, torch.log(x) + math.log(2), found)


LARGE = 1e18
"""A number of which the difference from its neighbour, and 1 below its square, are nothing."""


def _by_log1p(x: torch.Tensor, formula: Formula) -> Any:
    """``formula`` of floats on a CPU, computed in float32 or float64."""
    if not x.is_floating_point() or x.device.type != "cpu":
        return NotImplemented
    wide = widened(x)
    return formula(wide).to(x.dtype)


# Set in a block of one thread: Inductor calls formulas without a place for an argument.
_plain_mean: ContextVar[bool] = ContextVar("plain_mean", default=False)
_kept_factors: ContextVar[bool] = ContextVar("kept_factors", default=False)


@contextlib.contextmanager
def _set(variable: ContextVar[bool], value: bool = True) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def setting(variable: ContextVar[bool]) -> Callable[[Formula], Formula]:
    """A change of formulas: ``variable`` is true while they run."""

    def change(formula: Formula) -> Formula:
        def changed(*args: Any, **more: Any) -> Any:
            with _set(variable):
                return formula(*args, **more)

        return changed

    return change


with_plain_mean = setting(_plain_mean)
"""Leave means of infinities infinite in a formula, as those of eager's batch norms are."""

with_kept_factors = setting(_kept_factors)
"""See `kept_factor`."""


def norm(formula: Formula) -> Formula:
    """Keep all results but the first of half-precision arguments in float32.

    Norms save statistics in float32, and return such gradients of parameters, if parameters are
    (see `tj_torch.ops.fakes.dtypes`); the formula would round them to the input's type first.
    """

    def changed(x: torch.Tensor, *args: Any, **more: Any) -> Any:
        first, *others = formula(*map(_float, (x, *args)), **more)
        return (None if first is None else first.to(x.dtype), *others)

    return changed


def _float(value: Any) -> Any:
    return widened(value) if isinstance(value, torch.Tensor) else value


def batch_norm(formula: Formula) -> Formula:
    """See `norm`; means of infinities are infinite."""
    return with_plain_mean(with_kept_factors(norm(formula)))


def kept_factor(operator: Any, keep: Formula) -> Formula:
    """``operator``, computed once for each channel of a batch norm, and then kept by ``keep``.

    Inductor's kernels would compute a root and a quotient again for each element of a
    ``channels_last`` tensor, in half of the kernel's time.
    """

    def formula(x: torch.Tensor) -> Any:
        if not _kept_factors.get() or x.device.type != "cpu":
            return NotImplemented
        with _set(_kept_factors, False):
            return keep(operator(x))

    return formula


def without_zero_factors(formula: Formula) -> Formula:
    """Restrict ``formula(x, a, b, beta, alpha)``, a sum of multiples, to factors other than 0.

    PyTorch's kernels do not read a term whose factor is 0; a formula would keep its NaN. With a
    factor of 0 the kernel is called.
    """

    def changed(*args: Any, beta: Any = 1, alpha: Any = 1, **more: Any) -> Any:
        if beta == 0 or alpha == 0:
            return NotImplemented
        return formula(*args, beta=beta, alpha=alpha, **more)

    return changed


def copied_view(x: torch.Tensor, size: Any) -> torch.Tensor:
    """A copy of ``x`` with another shape, whatever its strides: PyTorch's formula makes a view."""
    return x.clone(memory_format=torch.contiguous_format).view(size)


def zeros_in_memory(size: Any, **options: Any) -> torch.Tensor:
    """Zeros for those without memory, whose products Inductor does not compile."""
    return torch.zeros(size, **options)


def else_known(formula: Formula, known: Formula | None) -> Formula:
    """Use ``known`` where ``formula`` returns NotImplemented: Inductor has no kernel then."""

    def changed(*args: Any, **more: Any) -> Any:
        made = formula(*args, **more)
        return known(*args, **more) if made is NotImplemented and known is not None else made

    return changed


def of_bytes(operator: Any) -> Formula:
    """Let ``operator``, which tests elements for zero, return a byte for bytes, as in eager.

    Inductor's kernels return a bool for every type.
    """

    def changed(x: torch.Tensor, *args: Any, **more: Any) -> Any:
        if x.dtype is not torch.uint8:
            return NotImplemented
        return operator(x.to(torch.bool), *args, **more).to(torch.uint8)

    return changed


def for_negative_index(formula: Formula, becomes: Callable[[Any, int], Any]) -> Formula:
    """Replace negative indices in ``formula(x, dim, index, ...)`` by ``becomes(index, size)``.

    ``size`` is that of dimension ``dim``.
    """

    def changed(x: torch.Tensor, dim: int, index: torch.Tensor, *args: Any, **more: Any) -> Any:
        # A tensor without dimensions is indexed as one of size one.
        size = x.shape[dim] if x.dim() else 1
        index = torch.where(index < 0, becomes(index, size), index)
        return formula(x, dim, index, *args, **more)

    return changed


def behind_the_end(index: Any, size: int) -> Any:
    """An index out of range: PyTorch's kernels refuse negative
    ones, Inductor's formula does not.
    """
    return size


def from_the_end(index: Any, size: int) -> Any:
    """The index counted from the start."""
    return index + size


def _along(values: torch.Tensor, inputs: torch.Tensor, dim: int) -> torch.Tensor:
    """``values`` as a vector along dimension ``dim`` of ``inputs``."""
    return values.view([-1 if i == dim else 1 for i in range(inputs.dim())])


aten = torch.ops.aten


def existing(*names: str) -> tuple[Any, ...]:
    """The ATen operators of private ``names``, without those that PyTorch lacks."""
    found = []
    for name in names:
        with contextlib.suppress(AttributeError):
            found.append(attrgetter(name)(aten))
    return tuple(found)


ELEMENTARY: dict[Any, Formula] = {
    aten.acosh.default: acosh,
    aten.atanh.default: atanh,
}
FACTORS_OF_NORMS = (aten.rsqrt.default, aten.reciprocal.default)
"""Operators whose results are the factors of a batch norm."""

BATCH_NORMS = (
    aten.native_batch_norm.default,
    *existing(
        "_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats",
        "_native_batch_norm_legit_functional.default", "_batch_norm_with_update.default",
        "_batch_norm_with_update_functional.default",
    ),
)  # fmt: skip
NORMS = (
    aten.native_layer_norm.default,
    aten.native_layer_norm_backward.default,
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
)
WITHOUT_MEMORY = existing("_efficientzerotensor.default")
"""Operators that make zeros without memory."""

BAGS = dict.fromkeys(existing("_embedding_bag_backward.default"), bag_backward)
"""Decompositions of gradients of embedding bags."""

COPIES = existing("_to_copy.default")
"""Operators that copy to another data type."""

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
"""Operators that take negative indices; their formula uses `index_copy`, which takes none."""


NEEDED = (
    aten.addmm.default, *BATCH_NORMS, *NORMS, *NO_NEGATIVE_INDEX, *FROM_THE_END, *POOLS
)  # fmt: skip
"""The operators whose formulas are made of Inductor's."""

REPLACED = frozenset(
    {
        *WITHOUT_MEMORY,
        aten.avg_pool2d.default,
        aten.nll_loss_backward.default,
        aten.var_mean.correction,
        aten.var.correction,
        aten.view_copy.default,
        *DIVISIONS,
        *COMPARISONS,
        *SIGNS,
        *CONVERSIONS,
        *COPIES,
        *PROMOTED,
        *IN_PARTS,
        *ENDS,
        *FACTORS,
        *SUMS,
        *MOVES,
        *BAGS,
        *OF_SMALL,
        *MULTIPLES,
        *AT_PLACES,
        *ELEMENTARY,
        *ACTIVATIONS,
        *SAY_WHETHER,
        *NEEDED,
    }
)
"""The operators that have a formula here for more than halves."""


def formulas(known: Mapping[Any, Formula], keep: Formula | None = None) -> dict[Any, Formula]:
    """Make the decompositions that replace those of ``known``, by operator.

    Those in `NEEDED` that are not known have none: no region has such a call. ``keep`` writes a
    tensor to memory.
    """
    ours = (
        DIVISIONS
        | COMPARISONS
        | SIGNS
        | CONVERSIONS
        | ENDS
        | FACTORS
        | SUMS
        | MOVES
        | BAGS
        | OF_SMALL
        | MULTIPLES
        | AT_PLACES
        | WITH_HALVES
        | ELEMENTARY
        | ACTIVATIONS
    )
    ours |= dict.fromkeys(COPIES, converted)
    if keep is not None:
        ours |= {operator: kept_factor(operator, keep) for operator in FACTORS_OF_NORMS}
    rows = aten.sum.dim_IntList
    ours[rows] = else_known(ours[rows], sum_of_rows)
    ours[aten.avg_pool2d.default] = average
    ours |= {op: of_bytes(op) for op in SAY_WHETHER}
    theirs: dict[Any, Callable[[Formula], Formula]] = {
        aten.addmm.default: without_zero_factors,
        **dict.fromkeys(PROMOTED, in_common_type),
        **dict.fromkeys(IN_PARTS, in_float),
        **dict.fromkeys(BATCH_NORMS, batch_norm),
        **dict.fromkeys(NORMS, norm),
        aten.native_group_norm_backward.default: _group_norm_backward,
        **dict.fromkeys(NO_NEGATIVE_INDEX, _refusing_negative),
        **dict.fromkeys(FROM_THE_END, _taking_negative),
        **{op: functools.partial(max_pool, dims=dims) for op, dims in POOLS.items()},
    }
    return {
        **dict.fromkeys(WITHOUT_MEMORY, zeros_in_memory),
        aten.nll_loss_backward.default: nll_loss_backward,
        aten.var_mean.correction: var_mean,
        aten.var.correction: variance,
        aten.view_copy.default: copied_view,
        **{op: else_known(formula, known.get(op)) for op, formula in ours.items()},
        **{op: change(known[op]) for op, change in theirs.items() if op in known},
    }


def _group_norm_backward(formula: Formula) -> Formula:
    return norm(else_known(group_norm_backward, formula))


def _refusing_negative(formula: Formula) -> Formula:
    return for_negative_index(formula, behind_the_end)


def _taking_negative(formula: Formula) -> Formula:
    return for_negative_index(formula, from_the_end)
