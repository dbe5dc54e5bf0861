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


NORMS: dict[str, Any] = {
    "of images": (lambda: torch.nn.BatchNorm2d(8), (4, 8, 6, 5)),
    "of rows": (lambda: torch.nn.BatchNorm1d(8, momentum=0.3), (6, 8)),
    "without parameters": (lambda: torch.nn.BatchNorm1d(8, affine=False), (4, 8, 5)),
    "without statistics": (lambda: torch.nn.BatchNorm1d(8, track_running_stats=False), (4, 8, 5)),
    "of volumes": (lambda: torch.nn.BatchNorm3d(8), (2, 8, 3, 2, 3)),
    "of instances": (lambda: torch.nn.InstanceNorm2d(8, affine=True), (4, 8, 6, 5)),
}
"""Modules in training with batch norms, and the shapes of their inputs."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMS)
def test_a_batch_norm_saves_its_statistics(name: str, fusing: Any) -> None:
    make, shape = NORMS[name]
    found = []
    for wrap in (lambda module: module, fusing):
        torch.manual_seed(0)
        model = torch.nn.Sequential(make(), torch.nn.SiLU())
        for p in model.parameters():
            torch.nn.init.normal_(p)
        run, x = wrap(model), torch.randn(shape).mul(3).requires_grad_()
        for _ in range(2):
            (run(x) * 2).square().sum().backward()
        buffers = dict(model.named_buffers())
        found.append([x.grad, *(p.grad for p in model.parameters()), run(x), *buffers.values()])
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)
    large = torch.Size(shape).numel()
    assert all(torch.Size(s).numel() < large for s in saved(run).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_batch_norm_of_infinities(dtype: torch.dtype, fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None, None, training=True).sigmoid() * 2

    given = torch.tensor([[1.0, torch.inf, 2, torch.nan], [2, 3, -torch.inf, 1], [0, 1, 2, 3]])
    found = [given.to(dtype).requires_grad_() for _ in range(2)]
    results = [g(x) for g, x in zip((f, fusing(f)), found, strict=True)]
    torch.testing.assert_close(*results, equal_nan=True)
    for y in results:
        y.sum().backward()
    torch.testing.assert_close(*(x.grad for x in found), equal_nan=True)


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


@pytest.mark.parametrize("kind", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_a_sparse_gradient_of_a_table_that_is_written_stays_sparse(kind: Any, fusing: Any) -> None:
    """The new table has no tangent; zeros in its place would make the gradient dense."""

    def trained(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        table = kind(5, 4, max_norm=0.5, sparse=True)

        def picked(x: torch.Tensor) -> torch.Tensor:
            i = torch.arange(x.shape[0]) % 5
            return x + table(i if kind is torch.nn.Embedding else i[None])

        f = fusing(picked) if compiled else picked
        for tangent in (torch.ones(()).expand(3, 4), torch.randn(3, 4)):
            f(torch.ones(3, 4, requires_grad=True)).backward(tangent)
        assert table.weight.grad.layout is torch.sparse_coo
        return [table.weight.detach(), table.weight.grad.to_dense()]

    torch.testing.assert_close(trained(True), trained(False))


def test_a_written_argument_is_copied_with_its_gaps_for_second_gradients(fusing: Any) -> None:
    def f(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        mean.mul_(0.9).add_(x.detach().sum(0), alpha=0.1)
        return (x * x).sin() + mean

    def second(f: Any) -> torch.Tensor:
        mean = torch.ones(4, 4)[:, 1]
        (first,) = torch.autograd.grad(f(x, mean).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    x = torch.randn(3, 4, requires_grad=True)
    torch.testing.assert_close(second(fusing(f)), second(f))
