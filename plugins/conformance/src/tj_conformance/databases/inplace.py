"""In-place and ``out=`` variants of PyTorch's database of operations, and of its foreach databases.

Every sample is compared by the aliasing oracle: values of results and written arguments, their
identity and versions, effects of a write to an output afterwards, and gradients.
"""

from __future__ import annotations

import enum
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tj_core as tj
import torch
from torch.utils import _pytree as pytree

from tj_conformance.databases.known import UNDEFINED
from tj_conformance.databases.op_db import full_name, operations, sample_arguments
from tj_conformance.oracle.device import device
from tj_conformance.oracle.result import Result
from tj_conformance.programs.aliasing import Jit, Scene, check, stateless

__all__ = [
    "OutVariant",
    "foreach_operations",
    "in_place_operations",
    "out_operations",
    "run_foreach",
    "run_in_place",
    "run_out",
]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class OutVariant(enum.Enum):
    """Kinds of tensors passed as ``out=``."""

    FITS = "fits"
    STRIDED = "strided"
    """With the right shape, in memory that is not contiguous."""
    EMPTY = "empty"
    """Without elements: PyTorch resizes it."""


def in_place_operations(dtype: torch.dtype) -> list[Any]:
    """The entries of op_db that have an in-place variant and defined results."""
    return [op for op in _defined(dtype) if op.inplace_variant is not None]


def out_operations(dtype: torch.dtype) -> list[Any]:
    """The entries of op_db that take ``out=`` and have defined results."""
    return [op for op in _defined(dtype) if op.supports_out]


def _defined(dtype: torch.dtype) -> Iterator[Any]:
    return (op for op in operations(dtype) if full_name(op) not in UNDEFINED)


def foreach_operations(dtype: torch.dtype) -> list[Any]:
    """The entries of the foreach databases that have an in-place variant."""
    from torch.testing._internal import common_methods_invocations as databases

    groups = ("unary", "binary", "pointwise", "reduce", "other")
    entries = itertools.chain(*(getattr(databases, f"foreach_{g}_op_db") for g in groups))
    return [
        op
        for op in entries
        if op.inplace_variant is not None and dtype in op.supported_dtypes(device())
    ]


def run_in_place(
    op: Any,
    dtype: torch.dtype,
    *,
    grad: bool = False,
    count: int = 3,
    jit: Jit = tj.jit,
    lenient: bool = False,
    written: torch.dtype | None = None,
) -> Result:
    """Compare the in-place variant of ``op`` on ``count`` samples; ``grad``: all need gradients.

    ``lenient``: autograd sees other calls than the user's, see
    `tj_conformance.programs.aliasing.check`. The written argument has the data type ``written``, if
    given, the others ``dtype``.
    """
    samples = [
        ((_as(given, written), *others), kwargs)
        for (given, *others), kwargs in sample_arguments(op, dtype, count, grad=False)
    ]
    return _run(full_name(op), op.inplace_variant, samples, grad, jit, lenient)


def run_foreach(op: Any, dtype: torch.dtype, *, count: int = 4, jit: Jit = tj.jit) -> Result:
    """Compare the in-place variant of a foreach operation on lists of three tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        found = op.sample_inputs(device(), dtype, num_input_tensors=[3])
        samples = [
            ((s.input, *s.args), {k: v for k, v in s.kwargs.items() if k not in _OF_THE_TESTS})
            for s in itertools.islice(found, count)
        ]
    return _run(op.name, op.inplace_variant, samples, False, jit)


_OF_THE_TESTS = frozenset({"disable_fastpath", "ref_args", "zero_size"})
"""Keywords of foreach samples that are for PyTorch's tests, not the operation."""


def run_out(
    op: Any,
    dtype: torch.dtype,
    *,
    variant: OutVariant,
    count: int = 2,
    jit: Jit = tj.jit,
    written: torch.dtype | None = None,
) -> Result:
    """Compare ``op`` with ``out=`` on ``count`` samples; ``out=`` has the data type ``written``."""
    samples = []
    for args, kwargs in sample_arguments(op, dtype, count, grad=False):
        out = _out(op, args, kwargs, variant)
        if out is not None:
            given = pytree.tree_map(lambda t: _as(t, written), out)
            samples.append((args, {**kwargs, "out": given}))
    return _run(full_name(op), op.op, samples, False, jit)


def _as(value: Any, dtype: torch.dtype | None) -> Any:
    """Convert a tensor to ``dtype``, if one is given."""
    if dtype is None or not isinstance(value, torch.Tensor):
        return value
    return (value if dtype.is_complex or not value.is_complex() else value.real).to(dtype)


def _out(op: Any, args: Any, kwargs: Any, variant: OutVariant) -> Any:
    """Tensors to pass as ``out=``; None where eager does not return tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = op.op(*args, **kwargs)
        except Exception:
            return None
    if _is_strided(expected):
        return _like(expected, variant)
    if isinstance(expected, tuple) and all(map(_is_strided, expected)):
        return tuple(_like(t, variant) for t in expected)
    return None


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _like(tensor: torch.Tensor, variant: OutVariant) -> torch.Tensor:
    if variant is OutVariant.EMPTY:
        return tensor.new_zeros(0)
    if variant is OutVariant.STRIDED:
        return tensor.new_zeros((*tensor.shape, 2))[..., 0]
    return tensor.new_zeros(tensor.shape)


def _run(
    name: str,
    fn: Callable[..., Any],
    samples: Sequence[Arguments],
    grad: bool,
    jit: Jit,
    lenient: bool = False,
) -> Result:
    def program(args: Any, kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    result = Result(name, samples=len(samples))
    scenes = [_scene(sample, grad) for sample in samples]
    ignore = ("grad_fn",) if lenient else ()
    report = check(stateless(program), scenes, jit=jit, lenient=lenient, ignore=ignore)
    result.differs("all samples", report.differences)
    result.eager_errors = sum(error is not None for error in report.raised)
    result.falls_back("all samples", report.fallbacks)
    return result


def _scene(sample: Arguments, grad: bool) -> Callable[[], Scene]:
    """Copies of a sample's arguments; with ``grad`` results of operations on leaves."""

    def make() -> Scene:
        leaves = []

        def copy(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            leaf = _copy(value)
            if not grad or not (leaf.is_floating_point() or leaf.is_complex()):
                return leaf
            leaves.append(leaf.requires_grad_())
            return leaf * 1

        return Scene(pytree.tree_map(copy, sample), tuple(leaves))

    return make


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf with the values and, where they can be, the strides of ``tensor``."""
    if tensor.layout is not torch.strided or 0 in tensor.stride():
        return tensor.detach().clone()
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return copy.copy_(tensor.detach())
