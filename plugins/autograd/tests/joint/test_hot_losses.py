"""Cross entropy and embeddings: gradients and costs, see `tj_suites.gradients.hot`."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_suites.gradients.hot import WEIGHT, I, case, checks_of
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(16)

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

(
    test_gradients_are_those_of_differences,
    test_results_and_gradients_are_eagers_to_the_bit,
    test_no_more_is_saved_or_run_than_eager_does,
) = checks_of(
    CASES, without={"embedding, by frequency", "embedding, negative padding", "embedding, padding"}
)


def test_a_sparse_gradient() -> None:
    w = torch.randn(5, 4, requires_grad=True)

    def f(w: torch.Tensor) -> torch.Tensor:
        return F.embedding(I, w, sparse=True).sin()

    grads = [torch.autograd.grad(fn(w).sum(), w)[0] for fn in (f, tj.jit(f))]
    assert all(g.is_sparse for g in grads)
    assert torch.equal(grads[0].to_dense(), grads[1].to_dense())
