"""Cross entropy and embeddings: gradients and costs, see `tj_suites.gradients.hot`."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_suites.gradients.hot import WEIGHT, I, case, check_bits, check_costs, check_differences
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(8)

CASES = {
    "cross_entropy": case(lambda x: F.cross_entropy(x, I[:3]), (3, 4)),
    "cross_entropy, ignoring": case(lambda x: F.cross_entropy(x, I[:3], ignore_index=2), (3, 4)),
    "cross_entropy, weighted": case(lambda x: F.cross_entropy(x, I[:3], WEIGHT.to(x)), (3, 4)),
    "cross_entropy, sum": case(lambda x: F.cross_entropy(x, I[:3], reduction="sum"), (3, 4)),
    "cross_entropy, each": case(lambda x: F.cross_entropy(x, I[:3], reduction="none"), (3, 4)),
    "cross_entropy, smooth": case(
        lambda x: F.cross_entropy(x, I[:3], WEIGHT.to(x), ignore_index=0, label_smoothing=0.2),
        (3, 4),
        more=True,
    ),
    "cross_entropy, distributions": case(lambda x, y: F.cross_entropy(x, y), (3, 4), (3, 4)),
    "cross_entropy, images": case(lambda x: F.cross_entropy(x, I[:4].view(2, 2)), (2, 5, 2)),
    "embedding": case(lambda w: F.embedding(I, w), (5, 4)),
    "embedding, padding": case(lambda w: F.embedding(I, w, padding_idx=2), (5, 4)),
    "embedding, negative padding": case(lambda w: F.embedding(I, w, padding_idx=-1), (5, 4)),
    "embedding, by frequency": case(lambda w: F.embedding(I, w, scale_grad_by_freq=True), (5, 4)),
}
NO_DIFFERENCES = {"embedding, by frequency", "embedding, negative padding", "embedding, padding"}
"""Gradients that finite differences cannot check; they are compared with eager's."""


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_differences(name: str) -> None:
    check_differences(CASES[name], differentiable=name not in NO_DIFFERENCES)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_eagers_to_the_bit(name: str, dtype: torch.dtype) -> None:
    check_bits(CASES[name], dtype)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # PyTorch 2.10 says so
@pytest.mark.parametrize("name", CASES)
def test_no_more_is_saved_or_run_than_eager_does(name: str) -> None:
    check_costs(CASES[name])


def test_a_sparse_gradient() -> None:
    w = torch.randn(5, 4, requires_grad=True)

    def f(w: torch.Tensor) -> torch.Tensor:
        return F.embedding(I, w, sparse=True).sin()

    grads = [torch.autograd.grad(fn(w).sum(), w)[0] for fn in (f, tj.jit(f))]
    assert all(g.is_sparse for g in grads)
    assert torch.equal(grads[0].to_dense(), grads[1].to_dense())
