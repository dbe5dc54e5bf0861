"""Every operation of PyTorch's ``op_db`` through one compiled callable, against eager."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tj_core as tj
import torch

from tj_torch.conformance.oracle import clone_tree, compare, differences, seeded
from tj_torch.conformance.result import Result

__all__ = ["full_name", "operations", "run_operation", "sample_arguments"]

UNDEFINED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
        "as_strided.partial_views",
        "as_strided_copy",
    }
)
"""Operations that return memory as it happens to be; their values mean nothing."""


def operations(dtype: torch.dtype = torch.float32) -> list[Any]:
    """The entries of op_db that support ``dtype`` on the CPU, in op_db's order."""
    from torch.testing._internal.common_methods_invocations import op_db

    _call_seeded_operations_directly()
    return [op for op in op_db if dtype in op.supported_dtypes("cpu")]


def full_name(op: Any) -> str:
    """``name.variant``, unique in op_db."""
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def _call_seeded_operations_directly() -> None:
    """op_db seeds random operations inside the call; here the seed is set outside of it."""

    def direct(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing") and hasattr(module, "wrapper_set_seed"):
            setattr(module, "wrapper_set_seed", direct)  # noqa: B010 (modules have no such type)


def sample_arguments(op: Any, dtype: torch.dtype, count: int, grad: bool) -> Iterator[Any]:
    """Positional and keyword arguments of the first ``count`` samples."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some samples are of features that warn
        samples = op.sample_inputs("cpu", dtype, requires_grad=grad)
        taken = list(itertools.islice(samples, count))
    for sample in taken:
        yield (sample.input, *sample.args), sample.kwargs


def run_operation(
    op: Any,
    dtype: torch.dtype = torch.float32,
    count: int = 3,
    jit: Callable[[Any], Any] = tj.jit,
) -> Result:
    """Run ``count`` samples of ``op`` through one jitted callable and compare each with eager."""
    result = Result(full_name(op))

    def program(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    jitted = jit(program)
    for args, kwargs in sample_arguments(op, dtype, count, grad=False):
        _sample(op, jitted, args, kwargs, result)
    result.fallbacks = tuple(f.reason for f in tj.stats(jitted).fallbacks)
    return result


def _sample(op: Any, jitted: Any, args: Any, kwargs: Any, result: Result) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            defined = _is_defined(op, args, kwargs)
        except Exception:
            result.eager_errors += 1
            return
        result.samples += 1
        try:
            found = compare(op.op, jitted, args, kwargs, values=defined)
        except Exception as error:
            result.problems.append(f"{type(error).__name__}: {error}".splitlines()[0])
            return
    result.problems += map(str, found)


def _is_defined(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether eager gives the same values for the same seed twice; raises what eager raises."""
    first = seeded(op.op, *clone_tree((args, kwargs)))
    second = seeded(op.op, *clone_tree((args, kwargs)))
    return full_name(op) not in UNDEFINED and not differences(first, second)
