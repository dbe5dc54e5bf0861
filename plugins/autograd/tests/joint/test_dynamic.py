"""Training with sizes that are symbols: one compiled program, many sizes, eager's gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_autograd.joint.rules import GradRule
from tj_conformance.gradients.layer_norm import (
    layer_norm,
    layer_norm_backward,
    native_layer_norm,
)
from tj_core.contract.executors import Claim, Executor, Pair
from tj_core.contract.rules import RuleTable
from tj_core.host.hookspecs import hookimpl
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(8)

Program = Callable[[torch.Tensor, torch.Tensor], Any]
SIZES = (5, 7, 4, 12)


def gradients(f: Program, n: int, which: Sequence[int] | None = None) -> list[torch.Tensor | None]:
    """The results and gradients of ``f``; ``which`` are the outputs that have a tangent."""
    torch.manual_seed(n)
    x, w = torch.randn(n, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    outs = f(x, w)
    outs = outs if isinstance(outs, tuple) else (outs,)
    chosen = outs if which is None else [outs[i] for i in which]
    torch.autograd.backward(chosen, [torch.randn_like(o) for o in chosen])
    return [*outs, x.grad, w.grad]


def agree(f: Program, jitted: Program, which: Sequence[int] | None = None) -> None:
    for n in SIZES:
        pairs = zip(gradients(jitted, n, which), gradients(f, n, which), strict=True)
        for mine, theirs in pairs:
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                assert torch.equal(mine, theirs)
                assert mine.stride() == theirs.stride()


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


# ------------------------------------------------------------------------------- others' gradients

LAYER_NORM, LINEAR = "torch.nn.functional.layer_norm", "torch.nn.functional.linear"


def linear(x, w, b=None):
    """Saves sizes, too: as they are, in a sequence, and computed with."""
    return F.linear(x, w, b), (x, w, x.shape, x.shape[0] * 2, b is not None)


def linear_backward(saved, grad):
    x, w, shape, double, biased = saved
    assert len(shape) == x.dim()
    rows = grad.reshape(double // 2, -1, grad.shape[-1]).flatten(0, 1)
    gx = torch.mm(rows, w).view(shape)
    gw = torch.mm(rows.t(), x.reshape(-1, x.shape[-1]))
    return gx, gw, rows.sum(0) if biased else None


def scaled(x, dim=None):
    """Saves only what its backward cannot tell otherwise: a size."""
    return torch.mean(x, dim), (x.shape,)


def scaled_backward(saved, grad):
    (shape,) = saved
    return (grad.expand(shape) / (shape[0] * shape[1]),)


FUNCTIONS: dict[str, Any] = {
    LAYER_NORM: (layer_norm, layer_norm_backward),
    LINEAR: (linear, linear_backward),
    "torch.mean": (scaled, scaled_backward),
}


def ruled(name: str, key: str) -> Any:
    """A plugin with a rule, or with an executor that has a pair, for ``key``."""
    forward, backward = FUNCTIONS[key]

    def tables(options: Any) -> Any:
        table: RuleTable[Any] = RuleTable("grad")
        table.set(key, GradRule(forward, backward))
        return (table,)

    def executors(options: Any) -> Any:
        claims: RuleTable[Claim] = RuleTable("claim")
        plain = lambda *args, **kwargs: forward(*args, **kwargs)[0]  # noqa: E731
        claims.set(key, Claim(plain, pair=Pair(forward, backward)))
        return (Executor("mine", claims),)

    hooks = {"rule": {"tj_rule_tables": tables}, "pair": {"tj_executors": executors}}[name]
    made = {hook: staticmethod(hookimpl(fn)) for hook, fn in hooks.items()}
    return type("mine", (), {"TJ_PLUGIN_API": 1, **made})


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = F.layer_norm(F.linear(x.sin(), w.t()), (6,)) * 2
    return F.layer_norm(h, (6,), w[0], w[1]).exp() + F.linear(x, w.t(), w.sum(0)).tanh()


def averaged(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mean(x * 2) * w.sin().sum()


@pytest.mark.parametrize("how", ["rule", "pair"])
@pytest.mark.parametrize(
    ("f", "key", "count"), [(layer, LAYER_NORM, 2), (layer, LINEAR, 2), (averaged, "torch.mean", 1)]
)
def test_gradients_of_others_serve_many_sizes(f: Program, key: str, count: int, how: str) -> None:
    session = tj.Session([ruled(how, key), "torch", "autograd"])
    jitted = tj.jit(f, session=session, dynamic=True)
    agree(f, jitted)
    stats = tj.stats(jitted)
    assert (stats.entries, stats.misses, stats.fallbacks) == (1, 1, ())
    changes = tj.last_trace(jitted, stage="JOINT").history[-1].changes
    assert [c.plugin for c in changes if c.rule == key] == ["mine"] * count


def addmm(bias, x, w, *, beta=1, alpha=1):
    return torch.addmm(bias, x, w), (x, w, x.shape[0])


def addmm_backward(saved, g):
    x, w, rows = saved
    return g.sum(0), g @ w.t(), (g.t() @ x.view(rows, -1)).t()


NORM, ADDMM = "aten.native_layer_norm.default", "aten.addmm.default"
FUNCTIONS[NORM] = native_layer_norm, layer_norm_backward
FUNCTIONS[ADDMM] = addmm, addmm_backward


@pytest.mark.parametrize("how", ["rule", "pair"])
@pytest.mark.parametrize(("key", "count"), [(NORM, 2), (ADDMM, 1)])
def test_gradients_of_parts_serve_many_sizes(key: str, count: int, how: str) -> None:
    session = tj.Session([ruled(how, key), "torch", "autograd"])
    jitted = tj.jit(layer, session=session, dynamic=True)
    agree(layer, jitted)
    assert tj.stats(jitted).entries == 1
    changes = tj.last_trace(jitted, stage="JOINT").history[-1].changes
    assert [c.plugin for c in changes if c.rule == key] == ["mine"] * count


@pytest.mark.parametrize("how", ["rule", "pair"])
def test_a_condition_on_sizes_in_others_gradients_is_a_guard(how: str) -> None:
    def forward(x):
        return torch.sin(x), (x, x.shape[0] > 6)

    def backward(saved, grad):
        x, large = saved
        return (grad * (x.cos() if large else torch.cos(x)),)

    def branching(x, *, out=None):
        return (torch.sin(x), (x,)) if x.shape[0] > 6 else (torch.sin(x * 1), (x,))

    for fn in (forward, branching):
        FUNCTIONS["torch.sin"] = fn, backward if fn is forward else lambda s, g: (g * s[0].cos(),)
        session = tj.Session([ruled(how, "torch.sin"), "torch", "autograd"])
        jitted = tj.jit(matmul_of_sines, session=session, dynamic=True)
        agree(matmul_of_sines, jitted)
        changes = tj.last_trace(jitted, stage="JOINT").history[-1].changes
        assert "mine" in [c.plugin for c in changes]
        assert tj.stats(jitted).entries == 2


def matmul_of_sines(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.sin() @ w) * 2


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


@pytest.mark.parametrize("name", ["conv1d", "fractional_max_pool2d"])
def test_a_gradient_may_settle_sizes_that_others_have_in_their_metadata(name: str) -> None:
    """An output of one element, and a pool's samples for each channel: both become guards."""
    w = torch.ones(5, 4, 3)

    def f(x: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        if name == "conv1d":
            return F.conv1d(x, w).sum()
        options = {"output_ratio": (0.5, 0.5), "_random_samples": samples}
        return F.fractional_max_pool2d(x[:, None], 2, **options).sum()

    jitted = tj.jit(f, dynamic=True)
    for batch, length in ((2, 3), (3, 3), (3, 9)):
        given = torch.rand(batch, 4, length), torch.rand(batch, 1, 2)
        if name != "conv1d":
            given = torch.rand(batch, 8, 2 + length), given[1]
        grads = []
        for fn in (f, jitted):
            x = given[0].clone().requires_grad_()
            fn(x, given[1]).backward()
            grads.append(x.grad)
        assert torch.equal(*grads)
    assert tj.last_trace(jitted, "backward")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_an_lstm_with_projections_over_symbols() -> None:
    """Its gates are chunks of the weights: what the sizes of its cell are, guards say."""
    net = torch.nn.LSTM(2, 3, num_layers=2, proj_size=2, batch_first=True, bias=False)

    def f(weights: Any, x: torch.Tensor) -> Any:
        return torch.func.functional_call(net, weights, (x,))[0]

    weights = {k: p.detach().clone().requires_grad_() for k, p in net.named_parameters()}
    x = torch.randn(2, 2)
    jitted = tj.jit(f, dynamic=True, plugins=("torch", "autograd"), check=2)
    jitted(weights, x).sum().backward()
    expected = torch.autograd.grad(f(weights, x).sum(), list(weights.values()))
    assert all(map(torch.equal, [p.grad for p in weights.values()], expected))


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
