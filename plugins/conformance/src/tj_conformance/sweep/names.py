"""Comparison of canonical names: a call that is resolved from its
name alone, with the call itself.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import Constant, map_tree
from tj_torch.extend import resolve
from tj_torch.internal import Names

from tj_conformance.oracle.compare import call_differences, compare, seeded

if TYPE_CHECKING:
    from tj_conformance.oracle.result import Result
    from tj_conformance.sweep.sample import Sample

__all__ = ["canonical_call", "hold_names"]

KINDS = ("method_variant", "inplace_variant", "operator_variant", "inplace_operator_variant")
NAMES = Names()


def hold_names(sample: Sample, result: Result) -> None:
    """Compare the operation's canonical name, and those of its other spellings, with eager."""
    assert sample.eager is not None
    mine = sample.arguments()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            got = seeded(canonical_call, (sample.op.op, *mine), {})
        except Exception as error:
            result.raises(sample.where, error)
            return
        theirs = sample.eager.arguments
        found = call_differences(got, mine, sample.eager.result, theirs, values=sample.defined)
        result.differs(sample.where, found)
        for function in _spellings(sample.op) if sample.defined else ():
            _hold_spelling(function, sample, result)


def canonical_call(target: Any, args: Any, kwargs: Any) -> Any:
    """The call under its canonical name."""
    named = NAMES.symbol(target, tuple(args), kwargs, lambda x: isinstance(x, torch.Tensor))
    values = map_tree(lambda c: c.value, named.args, Constant)
    return resolve(named.symbol)(*values, **named.kwargs)


def _spellings(op: Any) -> list[Callable[..., Any]]:
    """Methods, in-place methods, operators and aliases."""
    functions = [getattr(source, k, None) for source in (op, *op.aliases) for k in KINDS]
    return [f for f in [*functions, *(alias.op for alias in op.aliases)] if f is not None]


def _hold_spelling(function: Callable[..., Any], sample: Sample, result: Result) -> None:
    method = getattr(function, "__objclass__", None) is torch._C.TensorBase
    target = function.__name__ if method else function
    spelled = functools.partial(_spelled, target)
    with torch.no_grad():
        try:
            if compare(function, function, sample.args, sample.kwargs):
                return  # eager itself gives no one answer
        except Exception:
            return
        found = compare(function, spelled, sample.args, sample.kwargs)
    result.differs(f"{sample.where} as {target}", found)


def _spelled(target: Any, *args: Any, **kwargs: Any) -> Any:
    return canonical_call(target, args, kwargs)
