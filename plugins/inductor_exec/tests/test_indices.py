"""An index out of bounds raises what it raises in eager; it does not end the process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_inductor.thrown import thrown_again
from torch import nn

Program = Callable[[torch.Tensor, torch.Tensor], Any]
N = 200
"""Rows, enough for loops that threads share."""

CASES: dict[str, tuple[Program, tuple[int, ...]]] = {
    "index_copy": (lambda x, i: (x * 2).index_copy(1, i, x[:, :1]).sin(), (1,)),
    "index_add": (lambda x, i: (x * 2).index_add(1, i, x[:, :1]).sin(), (1,)),
    "index_reduce": (lambda x, i: (x * 2).index_reduce(1, i, x[:, :1], "prod").sin(), (1,)),
    "index_fill": (lambda x, i: (x * 2).index_fill(1, i, 3.0).sin(), (1,)),
    "index_select": (lambda x, i: (x * 2).index_select(1, i).sin(), (4,)),
    "getitem": (lambda x, i: (x * 2)[:, i].sin(), (4,)),
    "gather": (lambda x, i: (x * 2).gather(1, i).sin(), (N, 3, 8)),
    "scatter": (lambda x, i: (x * 2).scatter(1, i, x[:, :3]).sin(), (N, 3, 8)),
    "scatter of a number": (lambda x, i: (x * 2).scatter(1, i, 2.0).sin(), (N, 3, 8)),
    "scatter_add": (lambda x, i: (x * 2).scatter_add(1, i, x[:, :3]).sin(), (N, 3, 8)),
    "take": (lambda x, i: (x[0] * 2).take(i).sin(), (N, 3)),
    "put": (lambda x, i: (x[0] * 2).put(i, x[0, 0, :3]).sin(), (3,)),
    "index_put": (lambda x, i: torch.index_put(x * 2, (i,), x[0]).sin(), (4,)),
    "embedding": (lambda x, i: F.embedding(i, x[0] * 2).sin(), (N, 3)),
    "cross_entropy": (lambda x, i: F.cross_entropy(x[:, :, 0] * 2, i).sin(), (N,)),
    "nll_loss": (lambda x, i: F.nll_loss(x[..., None] * 2, i).sin(), (N, 8, 1)),
    "one_hot": (lambda x, i: F.one_hot(i, 64).float() * x[:, :, 0] + 1, (N,)),
    "multi_margin_loss": (lambda x, i: F.multi_margin_loss(x[:, :, 0] * 2, i).sin(), (N,)),
    "labels": (lambda x, i: F.multilabel_margin_loss(x[:, :, 0] * 2, i).sin(), (N, 64)),
    "max_unpool2d": (lambda x, i: F.max_unpool2d(x[:, None, :8] * 2, i, 2).sin(), (N, 1, 8, 8)),
    "writes": (lambda x, i: x.mul_(2).index_copy_(1, i, x[:, :1] * 2).sin(), (1,)),
    "a view": (lambda x, i: (x[1:], (x * 2).gather(1, i).sin())[1], (N, 3, 8)),
    "two calls": (
        lambda x, i: (
            (x * 2).scatter_reduce(1, i, x[:, :3], "sum").sin().flip(0).cumsum(0)
            * (x * 3).index_reduce(1, i[-1, -1, -1:], x[:, :1], "prod").cos()
        ),
        (N, 3, 8),
    ),
    "random beside": (
        lambda x, i: (
            torch.rand(N, 3).sin().mean() + F.embedding(i, x[0] * 2).mean() + torch.rand(N).cos()
        ),
        (N, 3),
    ),
    "random": (lambda x, i: (F.dropout(x, 0.5) * 2).gather(1, i).sin(), (N, 3, 8)),
}


def index(shape: tuple[int, ...], last: int) -> torch.Tensor:
    made = torch.zeros(shape, dtype=torch.int64)
    made.view(-1)[-1] = last
    return made


def outcome(f: Program, x: torch.Tensor, i: torch.Tensor) -> Any:
    """Results or error of a call, and the argument after it."""
    torch.manual_seed(0)
    try:
        found = f(x, i).detach()
    except Exception as error:
        found = (type(error), str(error))
    return found, x.detach(), torch.rand(())


@pytest.mark.sampled(20)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CASES)
def test_an_index_is_refused_as_in_eager(name: str, grad: bool, fusing: Any) -> None:
    f, shape = CASES[name]
    plain = torch.randn(N, 64, 8)
    grad = grad and name != "writes"
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        jitted, refused = fusing(f), fusing(f)
        for program, lasts in ((refused, (64, 0)), (jitted, (0, -1, 64, -70, 3))):
            for last in lasts:
                i = index(shape, last)
                with torch.set_grad_enabled(grad):
                    wanted = outcome(f, plain.clone().requires_grad_(grad), i)
                    found = outcome(program, plain.clone().requires_grad_(grad), i)
                if isinstance(wanted[0], tuple):
                    assert found[0] == wanted[0], last
                else:
                    torch.testing.assert_close(found[0], wanted[0])
                torch.testing.assert_close(found[1:], wanted[1:])


@pytest.mark.slow
def test_sizes_that_are_symbols(fusing: Any) -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return (x * 2).gather(0, i).sin() + 1

    jitted = fusing(f, dynamic=True)
    for n in (3000, 5000, 7000):
        x = torch.randn(n)
        torch.testing.assert_close(jitted(x, index((n,), 2)), f(x, index((n,), 2)))
        with pytest.raises(RuntimeError, match=f"index {n} is out of bounds"):
            jitted(x, index((n,), n))


@pytest.mark.parametrize("one", [True, False], ids=["one file", "a file for each"])
def test_a_model_whose_token_is_unknown(one: bool, fusing: Any) -> None:
    model = nn.Sequential(nn.Embedding(10, 64), nn.LayerNorm(64), nn.GELU())
    jitted = fusing(model, {"one_compile": one})
    tokens = torch.zeros(64, 8, dtype=torch.int64)
    for _ in range(2):
        torch.testing.assert_close(jitted(tokens), model(tokens))
        with pytest.raises(IndexError, match="index out of range in self") as error:
            jitted(tokens + 10)
        assert any("nn" in str(frame.path) for frame in error.traceback)


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 3)], ids=str)
def test_a_source_of_another_shape_is_refused(shape: tuple[int, ...], fusing: Any) -> None:
    x, i, source = torch.ones(3, 2), torch.tensor([0, 2]), torch.ones(shape)
    with pytest.raises(RuntimeError, match="source tensor shape must match self tensor shape"):
        fusing(lambda x, i, source: x.index_add(0, i, source))(x, i, source)


def test_probabilities_are_checked(fusing: Any) -> None:
    jitted = fusing(lambda p, t: F.binary_cross_entropy(p * 1, t) + 1)
    half = torch.full((4,), 0.5)
    torch.testing.assert_close(jitted(half, half), F.binary_cross_entropy(half, half) + 1)
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        jitted(half + 1, half)


KERNEL = """#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0)
{
    int done = 0;
    #pragma omp parallel num_threads(2)
    {
        int tid = omp_get_thread_num();
        {
            #pragma omp for collapse(2)
            for(int64_t x0=0; x0<4; x0+=1)
            {
                for(int64_t x1=0; x1<4; x1+=1)
                {
                    { TORCH_CHECK(x1 < 3, "too large"); }
                }
            }
        }
        #pragma omp for
        for(int64_t x0=0; x0<4; x0+=1) { out_ptr0[x0] = 0; }
        #pragma omp single
        {
            { TORCH_CHECK(done, "not done"); }
        }
    }
    done = 1;
}
"""


def test_where_errors_are_caught_and_thrown() -> None:
    made = thrown_again(KERNEL)
    assert made.count("try {") == 2
    assert made.count("catch (...)") == 2
    lines = [line.strip() for line in made.splitlines()]
    assert lines[lines.index("for(int64_t x1=0; x1<4; x1+=1)") + 1] == "{ try {"
    assert "for(int64_t x0=0; x0<4; x0+=1) { out_ptr0[x0] = 0; }" in lines
    assert lines[-3:] == ["done = 1;", "first_error.throw_again();", "}"]


@pytest.mark.parametrize("text", ["TORCH_CHECK(", "#pragma omp parallel", 'extern "C"'])
def test_other_kernels_stay_as_they_are(text: str) -> None:
    kernel = KERNEL.replace(text, "other")
    assert thrown_again(kernel) == kernel


class Picked(torch.autograd.Function):
    """Sines, whose backward reads elements of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, at)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, at = ctx.saved_tensors
        return (grads[0] * x.cos()).gather(0, at) * 2, None


def picked(x: torch.Tensor, at: torch.Tensor) -> Any:
    return Picked.apply(x * 2, at)


def read_after_a_view(x: torch.Tensor, at: torch.Tensor) -> Any:
    y = (x * 1).expand_as(x.new_empty(3, len(x)))
    return y, (y + 1) * y, torch.take(torch.arange(9.0), at)


# JOINT declines the second one, which runs as acquired, in regions.
@pytest.mark.parametrize("f", [picked, read_after_a_view])
def test_an_index_is_refused_with_gradients(f: Program, fusing: Any) -> None:
    def run(fn: Program, last: int) -> Any:
        x = torch.linspace(0, 1, 9).requires_grad_()
        try:
            outs = fn(x, index((9,), last))
            outs = outs if isinstance(outs, tuple) else (outs,)
            return torch.autograd.grad([y.sum() for y in outs if y.requires_grad], [x])
        except Exception as error:
            return type(error), str(error)

    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        jitted = fusing(f)
        for last in (9, 1, 9, -1):
            expected = run(f, last)
            found = run(jitted, last)
            if last == 9 or (f is picked and last < 0):
                assert issubclass(expected[0], Exception)
                assert found == expected
            else:
                torch.testing.assert_close(found, expected)
