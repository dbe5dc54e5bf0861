"""Forms of functions: one object for each, by which the memo knows their calls."""

from __future__ import annotations

import torch
from tj_core.extend import FUNCTIONAL, Symbol
from tj_torch.ops.memo.memo import Memo
from tj_torch.ops.naming.resolve import resolve
from tj_torch.ops.values.convert import tensor_proxy


def test_a_functional_form_is_expanded_once() -> None:
    symbol = Symbol("torch", "Tensor.add_", variant=FUNCTIONAL)
    memo = Memo()
    for name in ("x", "y"):
        memo.expand(resolve(symbol), (tensor_proxy(name, torch.ones(2)), 1), {"mutated": (0,)})
    assert (memo.hits, memo.misses) == (1, 1)
