"""Gradients of other plugins, of calls and of parts of them, over symbolic sizes."""

from __future__ import annotations

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
from tj_suites.gradients.dynamic import Program, agree
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(16)


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
