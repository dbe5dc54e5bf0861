"""Values that a forward saves where regions are compiled."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_suites.fused import X, hold

pytestmark = pytest.mark.sampled(10)


# ------------------------------------------------------------------------- what is saved


def saved(jitted: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of what the forward makes and saves."""
    trace = tj.last_trace(jitted)
    given = {p.name for p in trace.inputs}
    return {p.name: p.shape for p in trace.outputs[2] if p.name not in given}


@pytest.mark.parametrize("pack", [torch.Tensor.clone, torch.Tensor.contiguous, torch.Tensor.cpu])
def test_hooks_may_lay_out_what_is_saved_otherwise(pack: Any, fusing: Any) -> None:
    """Compiled kernels count on strides; a hook gave them others, and gradients were wrong."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        values = torch.sort((x @ w).t() * 1.5, dim=0).values
        return (values.t().exp().tanh() * 2).sum()

    def packed(t: torch.Tensor) -> torch.Tensor:
        return pack(t.detach()).clone(memory_format=torch.contiguous_format)

    found = []
    for g in (f, fusing(f)):
        torch.manual_seed(0)
        x, w = X(5, 6), X(6, 7)
        with torch.autograd.graph.saved_tensors_hooks(packed, lambda t: t):
            y = g(x, w)
        y.backward()
        found.append((x.grad, w.grad))
    torch.testing.assert_close(*found)


@pytest.mark.slow
def test_a_softmax_saves_two_numbers_of_a_row(fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (F.softmax(x * 2, -1) * F.log_softmax(x * 3, -1)).sum()

    jitted = fusing(f)
    hold(jitted, f, X(8, 64))
    assert {shape[-1] for shape in saved(jitted).values()} == {1}


@pytest.mark.slow
def test_a_layer_norm_saves_its_statistics(fusing: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (F.layer_norm(x.sin(), (64,), w, b).tanh() * 2).sum()

    jitted = fusing(f)
    hold(jitted, f, X(8, 64), X(64), X(64))
    assert sorted(saved(jitted).values()) == [(8, 1), (8, 1)]


@pytest.mark.slow
def test_a_layer_norm_of_a_permuted_value_stays_one_call(fusing: Any) -> None:
    """Its result is contiguous, and that of elementwise operations would not be."""

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.sin().permute(0, 2, 1), (8,), w, b) * 2

    hold(fusing(f), f, X(4, 8, 6), X(8), X(8))


@pytest.mark.slow
def test_what_lies_between_kernels_is_saved_and_the_rest_runs_again(fusing: Any) -> None:
    def f(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.gelu(x @ v).tanh() * 2
        return (F.gelu(y @ w).tanh() * 3).mean()

    jitted = fusing(f)
    hold(jitted, f, X(32, 32), X(32, 32), X(32, 32))
    assert len(saved(jitted)) == 3, "both products, and what the second one is of"
