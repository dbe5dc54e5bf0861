"""Formulas that stand for operators compute what these do."""

from __future__ import annotations

import itertools

import pytest
import torch
from tj_inductor import adapter
from tj_inductor.formulas import nll_loss_backward
from torch._subclasses.fake_tensor import FakeTensorMode

OPERATOR = torch.ops.aten.nll_loss_backward.default
CASES = [*itertools.product((0, 1, 2), (-100, 2), (False, True), (torch.float32, torch.float16))]


@pytest.mark.parametrize(("reduction", "ignored", "weighted", "dtype"), CASES)
def test_gradient_of_a_negative_log_likelihood(
    reduction: int, ignored: int, weighted: bool, dtype: torch.dtype
) -> None:
    weight = torch.rand(5).to(dtype) if weighted else None
    for inputs, target in (
        (torch.randn(4, 5), torch.tensor([0, 4, 2, 2])),
        (torch.randn(5), torch.tensor(3)),
    ):
        forward = torch.ops.aten.nll_loss_forward.default
        loss, total = forward(inputs.to(dtype), target, weight, reduction, ignored)
        args = (torch.rand_like(loss), inputs.to(dtype), target, weight, reduction, ignored, total)
        torch.testing.assert_close(nll_loss_backward(*args), OPERATOR(*args), rtol=0, atol=0)


def test_kernels_with_it_write_no_zeros_first() -> None:
    mode = FakeTensorMode()
    with mode:
        args = (torch.empty(()), torch.empty(4, 5), torch.empty(4, dtype=torch.int64))
    graph = adapter.traced(lambda g, x, t: (OPERATOR(g, x, t, None, 1, -100, g),), args, mode)
    called = {str(node.target) for node in graph.graph.nodes}
    assert not any("scatter" in name for name in called) and "aten.where.self" in called
