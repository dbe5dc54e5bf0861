"""Every operation of PyTorch's ``op_db``, jitted, against eager: its forward."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tj_core as tj
import torch

from tj_conformance.databases.known import UNDEFINED
from tj_conformance.oracle.compare import call_differences, seeded
from tj_conformance.oracle.device import device
from tj_conformance.oracle.result import Result
from tj_conformance.oracle.twins import clone_tree

__all__ = ["full_name", "operations", "run_operation", "sample_arguments"]


def operations(dtype: torch.dtype | None = torch.float32) -> list[Any]:
    """The entries of op_db that support ``dtype`` (None: any) on the CPU, in op_db's order."""
    from torch.testing._internal.common_methods_invocations import op_db

    _call_seeded_operations_directly()
    return [op for op in op_db if dtype is None or dtype in op.supported_dtypes(device())]


def full_name(op: Any) -> str:
    """``name.variant``, unique in op_db."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def _call_seeded_operations_directly() -> None:
    """op_db seeds random operations inside the call; here the seed is set outside of it."""

    def direct(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing") and hasattr(module, "wrapper_set_seed"):
            setattr(module, "wrapper_set_seed", direct)  # noqa: B010 (modules have no such type)


def sample_arguments(op: Any, dtype: torch.dtype, count: int | None, grad: bool) -> Iterator[Any]:
    """Positional and keyword arguments of the first ``count`` samples, or of all."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some samples are of features that warn
        samples = op.sample_inputs(device(), dtype, requires_grad=grad)
        taken = list(itertools.islice(samples, count))
    for sample in taken:
        yield (sample.input, *sample.args), sample.kwargs


def run_operation(
    op: Any,
    dtype: torch.dtype = torch.float32,
    count: int | None = 3,
    *,
    grad: bool = False,
    per_callable: int | None = None,
    jit: Callable[[Any], Any] = tj.jit,
) -> Result:
    """Run the first ``count`` samples of ``op`` (None: all) and compare each with eager.

    A jitted callable serves ``per_callable`` samples (None: all). With ``grad`` inputs require
    gradients where the operation supports them; the comparison stays that of the forward.
    """
    result = Result(full_name(op))
    grad = grad and op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    cases = enumerate(sample_arguments(op, dtype, count, grad))
    while chunk := list(itertools.islice(cases, per_callable)):
        _samples(op, jit, chunk, result)
    return result


def _samples(
    op: Any, jit: Callable[[Any], Any], cases: list[tuple[int, Any]], result: Result
) -> None:
    """Run ``cases`` (number, arguments) through one jitted callable."""

    def program(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    torch.compiler.reset()  # PyTorch's hook gives up on code it has compiled often, as `op.op` is
    jitted = jit(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (args, kwargs) in cases:
            _sample(op, jitted, args, kwargs, result, f"sample {number}")
    reasons = (f.reason for f in tj.stats(jitted).fallbacks)
    result.falls_back(f"samples {cases[0][0]} to {cases[-1][0]}", reasons)


def _sample(op: Any, jitted: Any, args: Any, kwargs: Any, result: Result, where: str) -> None:
    mine, theirs = clone_tree((args, kwargs)), clone_tree((args, kwargs))
    try:
        expected = seeded(op.op, *theirs)
    except Exception:
        result.eager_errors += 1
        return
    result.samples += 1
    try:
        got = seeded(jitted, *mine)
    except Exception as error:
        result.raises(where, error)
        return
    defined = full_name(op) not in UNDEFINED
    result.differs(where, call_differences(got, mine, expected, theirs, values=defined))
