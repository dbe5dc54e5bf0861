"""Gradients of PyTorch's ``op_db``, jitted, against finite differences (`gradcheck`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.utils import _pytree as pytree

from tj_conformance.databases.op_db import full_name
from tj_conformance.oracle.device import device
from tj_conformance.oracle.result import Kind, Problem, Result

__all__ = ["run_gradcheck"]


def run_gradcheck(
    op: Any,
    dtype: torch.dtype = torch.float64,
    count: int | None = None,
    *,
    jit: Callable[[Any], Any] = tj.jit,
) -> Result:
    """Check the first ``count`` samples of ``op`` (None: all), where the check holds in eager.

    As in PyTorch's own test: along one random direction, with the wrapper and the tolerance of
    op_db.
    """
    result = Result(full_name(op))
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = op.sample_inputs(device(), dtype, requires_grad=True)
        for number, sample in enumerate(samples):
            if number == count:
                break
            _sample(op, sample, result, jit, f"sample {number}")
    return result


def _sample(op: Any, sample: Any, result: Result, jit: Callable[[Any], Any], where: str) -> None:
    try:
        _check(op, op.op, sample)
    except Exception:
        result.eager_errors += 1
        return
    result.samples += 1
    torch.compiler.reset()

    def program(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    program.__name__ = getattr(op.op, "__name__", program.__name__)  # which wrappers ask for
    jitted = jit(program)
    try:
        _check(op, jitted, sample)
    except GradcheckError as error:
        result.problems.append(Problem(Kind.RESULT, where, str(error).partition("\n")[0]))
    except Exception as error:
        result.raises(where, error)
    result.falls_back(where, (f.reason for f in tj.stats(jitted).fallbacks))


def _check(op: Any, fn: Callable[..., Any], sample: Any) -> None:
    """Raise if the gradient of ``fn`` at ``sample`` differs from finite differences."""
    wanted = [t for t in _tensors((sample.input, sample.args, sample.kwargs)) if t.requires_grad]
    output = sample.output_process_fn_grad

    def call(*given: torch.Tensor) -> Any:
        values = dict(zip(map(id, wanted), given, strict=True))

        def current(leaf: Any) -> Any:
            return values.get(id(leaf), leaf)

        tree = (sample.input, sample.args, sample.kwargs)
        first, args, kwargs = pytree.tree_map(current, tree)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = op.gradcheck_wrapper(fn, first, *args, **kwargs)
        return output(made) if output is not None else made

    gradcheck(
        call,
        wanted,
        check_batched_grad=False,
        check_grad_dtypes=True,
        nondet_tol=op.gradcheck_nondet_tol,
        fast_mode=True,
    )


def _tensors(tree: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(tree)
    return list({id(t): t for t in leaves if isinstance(t, torch.Tensor)}.values())
