"""Gradients of PyTorch's `op_db` and `module_db` through traces, eager as the oracle, bit for bit.

The default run takes a sample; ``TJ_FULL=1`` takes all.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.conformance.module_db import modules, run_module
from tj_torch.conformance.op_db import full_name, operations, sample_arguments
from tj_torch.conformance.oracle import seeded
from tj_torch.conformance.result import Kind
from tj_torch.conformance.twins import clone_tree
from torch.utils import _pytree as pytree

FULL = os.environ.get("TJ_FULL") == "1"
OPERATIONS = [op for op in operations() if op.supports_autograd]
MODULES = modules()

ROUNDING = {
    # where() lays its result out in another way on fake tensors, and the sum over it is rounded so.
    "masked_fill",
    # With data at hand, PyTorch divides the product by each factor if none of these is zero.
    "prod",
}


def outcome(fn: Any, args: Any, kwargs: Any) -> Any:
    """Whether each result requires a gradient, and the gradients of all that do."""
    args, kwargs = clone_tree((args, kwargs))
    out = seeded(fn, args, kwargs)
    outs = [o for o in pytree.tree_leaves(out) if isinstance(o, torch.Tensor)]
    flags = [o.requires_grad for o in outs]
    outs = [o for o in outs if o.requires_grad]
    given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    wanted = [t for t in given if t.requires_grad]
    if not outs or not wanted:
        return flags, ()
    generator = torch.Generator().manual_seed(7)
    tangents = [torch.randn(o.shape, generator=generator).to(o.dtype) for o in outs]
    return flags, torch.autograd.grad(outs, wanted, tangents, allow_unused=True)


def equal(mine: Any, theirs: Any, exact: bool) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    if mine.layout is not theirs.layout or mine.shape != theirs.shape:
        return False
    if mine.layout is not torch.strided:
        mine, theirs = mine.to_dense(), theirs.to_dense()
    tolerance = 0.0 if exact else 1e-5
    return torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("op", OPERATIONS if FULL else OPERATIONS[::9], ids=full_name)
def test_gradients_of_an_operation(op: Any) -> None:
    exact = full_name(op) not in ROUNDING
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args, kwargs in sample_arguments(op, torch.float32, 3 if FULL else 2, True):
            torch.compiler.reset()
            try:
                expected = outcome(op.op, args, kwargs)
            except Exception:
                continue  # not every sample can be differentiated

            def program(*args: Any, **kwargs: Any) -> Any:
                return op.op(*args, **kwargs)

            got = outcome(tj.jit(program, dynamic=False), args, kwargs)
            assert got[0] == expected[0]
            assert all(equal(a, b, exact) for a, b in zip(got[1], expected[1], strict=True))


@pytest.mark.parametrize("info", MODULES if FULL else MODULES[::8], ids=lambda m: m.name)
def test_gradients_of_a_module(info: Any) -> None:
    """Parameters and buffers included."""
    result = run_module(info, training=True)
    assert [p for p in result.problems if p.kind is not Kind.BREAK] == []
