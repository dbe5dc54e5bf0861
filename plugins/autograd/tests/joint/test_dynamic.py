"""Training with sizes that are symbols: one compiled program, many sizes, eager's gradients."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_suites.gradients.dynamic import SIZES, Program, agree
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(16)


def matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w)


def reductions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).mean(0) + x.sum() + w.std()


def views(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = (x @ w).reshape(-1, 2, 3).transpose(1, 2)
    return h.flatten(1).contiguous() * x.size(0)


def broadcast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x[:, :, None] * w).sum(1) + w.expand(x.size(0), 4, 6).amax((0, 1))


def slices(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    first, rest = x[:2], x[2:]
    return torch.cat([rest.sin(), first.cos(), x.flip(0)]) @ w


def several(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x * 2).sin(), torch.log_softmax(x @ w, 0)


def apart(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), w.cos()


def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q, k, v = (x @ w).chunk(3, -1)
    return F.softmax(q @ k.t() / q.size(-1) ** 0.5, -1) @ v


def chosen_by_data(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x[x > 0].sin().sum() * w.sum()


def embedding(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.embedding((x * 2).long().abs() % 4, w).sum(1) * x.mean()


def normalized(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x @ w, (6,)) * F.rms_norm(x @ w, (6,)) + F.normalize(x, dim=0).sum()


PROGRAMS = [
    matmul,
    reductions,
    views,
    broadcast,
    slices,
    several,
    apart,
    attention,
    embedding,
    normalized,
]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_one_program_serves_many_sizes(f: Program) -> None:
    jitted = tj.jit(f, dynamic=True)
    agree(f, jitted)
    stats = tj.stats(jitted)
    assert (stats.entries, stats.misses, stats.fallbacks) == (1, 1, ())
    assert tj.explain(jitted).declined == ()
    changes = tj.last_trace(jitted, stage="JOINT").history[-1].changes
    assert {c.rule for c in changes} == {"derived"}


def test_sizes_that_change_become_symbols() -> None:
    jitted = tj.jit(matmul)
    agree(matmul, jitted)
    assert tj.stats(jitted).entries == 2  # the first size, then all others


@pytest.mark.parametrize("which", [(0,), (1,)])
@pytest.mark.parametrize("f", [several, apart], ids=lambda f: f.__name__)
def test_some_tangents(f: Program, which: tuple[int, ...]) -> None:
    agree(f, tj.jit(f, dynamic=True), which)


def test_a_tangent_that_is_laid_out_in_another_way() -> None:
    jitted = tj.jit(matmul, dynamic=True)
    found = []
    for f in (jitted, matmul):
        torch.manual_seed(0)
        x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)
        f(x, w).backward(torch.randn(6, 5).t())
        found.append((x.grad, w.grad))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_sizes_are_saved_as_numbers() -> None:
    """The backward of a sum needs the size of what was summed, and nothing else."""
    jitted = tj.jit(lambda x, w: x.exp().sum(0).sin().sum() + (w + 1).sum(), dynamic=True)
    agree(lambda x, w: x.exp().sum(0).sin().sum() + (w + 1).sum(), jitted)
    saved = tj.last_trace(jitted, stage="SPLIT").outputs[2]
    assert any(type(p).__name__ == "NumberProxy" for p in saved)


def test_sizes_that_depend_on_data() -> None:
    jitted = tj.jit(chosen_by_data, dynamic=True)
    agree(chosen_by_data, jitted)
    changes = tj.last_trace(jitted, stage="JOINT").history[-1].changes
    assert {c.rule for c in changes} == {"derived"}


def test_second_derivatives() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).sin().mean(0).exp()

    jitted = tj.jit(f, dynamic=True)
    for n in SIZES:
        found = []
        for fn in (jitted, f):
            torch.manual_seed(n)
            x, w = torch.randn(n, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)
            (gx,) = torch.autograd.grad(fn(x, w).sum(), x, create_graph=True)
            gx.pow(2).sum().backward()
            found.append((gx, x.grad, w.grad))
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs)
    assert tj.stats(jitted).entries == 1


def test_a_sum_of_sizes_that_are_floats_has_one_text() -> None:
    """PyTorch writes ``2.0*ToFloat(s)`` for the product that ``2*ToFloat(s)`` becomes."""

    def mean_of_rows(x: torch.Tensor) -> torch.Tensor:
        total, rows = 0.0, 0.0
        for _ in range(2):
            total, rows = total + x.sum(0), rows + x.shape[0]
        return (total / rows).sum()

    jitted = tj.jit(mean_of_rows, dynamic=True)
    for n in (3, 2):
        x, y = (torch.ones(n, 4, requires_grad=True) for _ in range(2))
        mean_of_rows(x).backward()
        jitted(y).backward()
        assert torch.equal(x.grad, y.grad)
    assert tj.stats(jitted).misses == 1
    assert tj.last_trace(jitted, "backward")


def test_the_gradient_of_a_sum_is_not_copied_over_symbols() -> None:
    """Eager's formula gets one number seen as many, and adds and multiplies in that order."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cholesky_inverse(x)

    jitted = tj.jit(f, dynamic=True)
    for n in (5, 3):
        a = torch.randn(n, n)
        x = torch.linalg.cholesky(a @ a.T + torch.eye(n)).requires_grad_()
        mine, theirs = (torch.autograd.grad(g(x).sum(), x)[0] for g in (jitted, f))
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()
    assert tj.stats(jitted).misses == 1
    assert tj.last_trace(jitted, "backward").inputs[-1].strides == (0, 0)


def test_the_least_of_three_sizes() -> None:
    """sympy writes one minimum of all three, and `torch.sym_min` takes two."""

    def f(x: torch.Tensor) -> torch.Tensor:
        u, s, v = torch.svd_lowrank(x, q=2)
        return (u @ torch.diag_embed(s) @ v.mT).sum() + s.sum()

    jitted = tj.jit(f, dynamic=True)
    for n in (6, 9):
        found = []
        for fn in (jitted, f):
            torch.manual_seed(n)
            x = torch.randn(n, n + 1, requires_grad=True)
            found.append(torch.autograd.grad(fn(x), x)[0])
        assert torch.equal(*found)
    assert tj.stats(jitted).misses == 1


def test_a_number_that_is_one_is_no_symbol() -> None:
    """Bodies over symbols are decomposed, which lays a dimension of one element out otherwise."""

    def f(x: torch.Tensor, shape: tuple[int, ...], b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, shape, None, b)

    x, b = torch.randn(1, requires_grad=True), torch.randn(1, requires_grad=True)
    jitted = tj.jit(f, dynamic=True, check=2)
    pairs = (torch.autograd.grad(g(x, (1,), b).sum(), (x, b)) for g in (jitted, f))
    for mine, theirs in zip(*pairs, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()
