"""Gradients of PyTorch's ``op_db``, jitted, against eager's: first and second, bit for bit."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tj_core as tj
import torch
from torch.utils import _pytree as pytree

from tj_conformance.databases.known import UNDEFINED
from tj_conformance.databases.op_db import full_name, operations, sample_arguments
from tj_conformance.oracle.compare import call_differences, differences, seeded
from tj_conformance.oracle.device import device
from tj_conformance.oracle.result import Kind, Problem, Result
from tj_conformance.oracle.twins import clone_tree

__all__ = [
    "declined",
    "differentiable_operations",
    "first_gradients",
    "run_gradients",
    "run_second",
    "second_gradients",
]

Jit = Callable[[Any], Any]
Derivatives = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], list[Any]]
"""From results and arguments, those that require gradients, to the gradients compared."""


def differentiable_operations(dtype: torch.dtype, *, second: bool = False) -> list[Any]:
    """The entries of op_db that have gradients in ``dtype`` on the CPU, in op_db's order."""
    wanted = "supports_gradgrad" if second else "supports_autograd"
    return [
        op
        for op in operations(dtype)
        if getattr(op, wanted) and dtype in op.supported_backward_dtypes(device())
    ]


def run_gradients(
    op: Any,
    dtype: torch.dtype = torch.float32,
    count: int | None = None,
    *,
    per_callable: int = 8,
    jit: Jit = tj.jit,
) -> Result:
    """Compare results and gradients of the first ``count`` samples of ``op`` (None: all)."""
    return _run(op, dtype, count, per_callable, jit, _first)


def run_second(
    op: Any,
    dtype: torch.dtype = torch.float32,
    count: int | None = None,
    *,
    per_callable: int = 8,
    jit: Jit = tj.jit,
) -> Result:
    """Also the gradients with ``create_graph``, and their gradients."""
    return _run(op, dtype, count, per_callable, jit, _second)


def _run(
    op: Any, dtype: torch.dtype, count: int | None, per_callable: int, jit: Jit, wanted: Derivatives
) -> Result:
    result = Result(full_name(op))
    cases = enumerate(sample_arguments(op, dtype, count, grad=True))
    while chunk := list(itertools.islice(cases, per_callable)):
        _samples(op, jit, chunk, result, wanted)
    return result


def _samples(
    op: Any, jit: Jit, cases: list[tuple[int, Any]], result: Result, wanted: Derivatives
) -> None:
    """Run ``cases`` (number, arguments) through one jitted callable."""

    def program(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    torch.compiler.reset()  # PyTorch's hook gives up on code it has compiled often, as `op.op` is
    jitted = jit(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (args, kwargs) in cases:
            _sample(op, jitted, args, kwargs, result, f"sample {number}", wanted)
    reasons = (f.reason for f in tj.stats(jitted).fallbacks)
    result.falls_back(f"samples {cases[0][0]} to {cases[-1][0]}", reasons)


def _sample(
    op: Any, jitted: Any, args: Any, kwargs: Any, result: Result, where: str, wanted: Derivatives
) -> None:
    mine, theirs = clone_tree((args, kwargs)), clone_tree((args, kwargs))
    try:
        expected = _outcome(op.op, theirs, wanted)
    except Exception:
        result.eager_errors += 1
        return
    result.samples += 1
    try:
        got = _outcome(jitted, mine, wanted)
    except Exception as error:
        result.raises(where, error)
        return
    defined = full_name(op) not in UNDEFINED
    result.differs(where, call_differences(got[0], mine, expected[0], theirs, values=defined))
    result.differs(where, differences(got[1], expected[1], "gradients", values=defined))
    result.problems += [Problem(Kind.DECLINED, where, reason) for reason in declined(jitted)]


def declined(jitted: Any) -> Iterator[str]:
    """Reasons why the program that ran last has no traced gradients."""
    if tj.stats(jitted).entries:
        yield from (answer.reason for _, answer in tj.explain(jitted).declined)


def _outcome(fn: Any, given: Any, wanted: Derivatives) -> tuple[Any, list[Any]]:
    """Results of ``fn``, and the gradients."""
    returned = seeded(fn, *given)
    return returned, _derived(returned, given, wanted)


def first_gradients(returned: Any, given: Any) -> list[Any]:
    """The gradients of what a call returned, for tangents that are the same in every run."""
    return _derived(returned, given, _first)


def second_gradients(returned: Any, given: Any) -> list[Any]:
    """The gradients as of `first_gradients`, and the gradients of these."""
    return _derived(returned, given, _second)


def _derived(returned: Any, given: Any, wanted: Derivatives) -> list[Any]:
    outs, leaves = (
        [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and t.requires_grad]
        for tree in (returned, given)
    )
    return wanted(outs, leaves) if outs and leaves else []


def _tangents(outs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Random tangents, the same for the same shapes."""
    generator = torch.Generator().manual_seed(7)
    made = (torch.randn(o.shape, generator=generator, dtype=torch.complex128) for o in outs)
    return [
        m.to(o.dtype) if o.is_complex() else m.real.to(o.dtype)
        for m, o in zip(made, outs, strict=True)
    ]


def _first(outs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[Any]:
    return list(torch.autograd.grad(outs, leaves, _tangents(outs), allow_unused=True))


def _second(outs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[Any]:
    tangents = [t.requires_grad_() for t in _tangents(outs)]
    first = torch.autograd.grad(outs, leaves, tangents, allow_unused=True, create_graph=True)
    again = [g for g in first if g is not None and g.requires_grad]
    if not again:
        return list(first)
    second = torch.autograd.grad(again, [*leaves, *tangents], _tangents(again), allow_unused=True)
    return [*first, *second]
