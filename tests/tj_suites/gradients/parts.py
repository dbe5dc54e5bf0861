"""Calls with parts that have gradients, and plugins that have rules or pairs for these."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
from tj_autograd.joint.rules import GradRule
from tj_conformance.gradients.layer_norm import layer_norm_backward, native_layer_norm
from tj_core.contract.executors import Claim, Executor, Pair
from tj_core.contract.rules import RuleTable
from tj_core.host.hookspecs import hookimpl
from torch.nn import functional as F

ADDMM = "aten.addmm.default"


NORM = "aten.native_layer_norm.default"


SOFTMAX = "aten._softmax.default"


RAN: list[str] = []


def addmm(bias: Any, x: Any, w: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return torch.addmm(bias, x, w, beta=beta, alpha=alpha), (x, w)


def addmm_backward(saved: Any, g: Any) -> Any:
    x, w = saved
    return g.sum(0), g @ w.t(), (g.t() @ x).t()


def softmax(x: Any, dim: Any, half_to_float: Any) -> Any:
    out = torch.ops.aten._softmax.default(x, dim, half_to_float)
    return out, (out, dim)


def softmax_backward(saved: Any, g: Any) -> Any:
    out, dim = saved
    return (torch.ops.aten._softmax_backward_data.default(g, out, dim, out.dtype),)


def linear(x: Any, w: Any, b: Any = None) -> Any:
    return F.linear(x, w, b), (x, w)


def linear_backward(saved: Any, g: Any) -> Any:
    x, w = saved
    rows, columns = g.flatten(0, -2), x.flatten(0, -2)
    gx = (rows @ w).view(x.shape)
    return gx, (rows.t() @ columns), rows.sum(0)


def div(x: Any, y: Any) -> Any:
    return torch.div(x, y), (x, y)


def div_backward(saved: Any, g: Any) -> Any:
    x, y = saved
    return g / y, -g * ((x / y) / y)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "torch.nn.functional.linear": (linear, linear_backward),
    "torch.div": (div, div_backward),
    ADDMM: (addmm, addmm_backward),
    NORM: (native_layer_norm, layer_norm_backward),
    SOFTMAX: (softmax, softmax_backward),
}


def plugin(name: str, **hooks: Callable[..., Any]) -> Any:
    """A plugin with these hooks."""
    made = {hook: staticmethod(hookimpl(fn)) for hook, fn in hooks.items()}
    return type(name, (), {"TJ_PLUGIN_API": 1, **made})


def table(name: str, entries: dict[str, Any]) -> Any:
    made: RuleTable[Any] = RuleTable(name)
    for key, value in entries.items():
        made.set(key, value)
    return made


def rule(key: str, check: Any = None, name: str = "Rules") -> Any:
    """A plugin with a gradient rule for ``key``."""
    made = GradRule(*FUNCTIONS[key], check)
    return plugin(name, tj_rule_tables=lambda options: (table("grad", {key: made}),))


def noted(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        RAN.append(name)
        return fn(*args, **kwargs)

    return run


def pair(name: str, key: str, check: Any = None) -> Any:
    """An executor with a pair for ``key``."""
    forward, backward = FUNCTIONS[key]
    made = Pair(noted(name, forward), noted(f"{name} back", backward), (forward, backward))
    claim = Claim(lambda *a, **k: forward(*a, **k)[0], check, made)

    def executors(options: Any) -> Any:
        return (Executor(name, table("claim", {key: claim})),)

    return plugin(name, tj_executors=executors)


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]


def check(
    fn: Callable[..., Any], args: list[torch.Tensor], *plugins: Any, transforms: Any = ()
) -> Any:
    """``fn`` with ``plugins``: results, gradients, strides and random numbers are eager's."""
    session = tj.Session([*plugins, "torch", "autograd"])
    jitted = tj.jit(fn, session=session, transforms=list(transforms))
    compare(jitted, fn, args)
    return jitted


def compare(jitted: Any, fn: Callable[..., Any], args: list[torch.Tensor]) -> None:
    results = []
    for run in (jitted, fn):
        torch.manual_seed(0)
        out = run(*args)
        tangent = torch.ones_like(out).cumsum(0)
        results.append((out, *torch.autograd.grad(out, args, tangent), torch.rand(3)))
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()


def rows(jitted: Any) -> list[tuple[str, str, str]]:
    """Rows of the table of gradients in `tj.explain`: rule, owner, those that declined."""
    lines = str(tj.explain(jitted)).partition("gradients:")[2].split("\n\n")[0].splitlines()[2:]
    cells = [[c.strip() for c in line.split("  ") if c.strip()] for line in lines]
    return [(c[1], c[2], c[3] if len(c) > 3 else "") for c in cells]


def decomposed(jitted: Any) -> list[str]:
    return [rule for rule, whose, _ in rows(jitted) if rule.startswith("decomposed: ")]


def attention(x: Any, wi: Any, bi: Any, wo: Any, bo: Any, p: Any = 0.0) -> Any:
    return F.multi_head_attention_forward(
        x, x, x, 8, 2, wi, bi, None, None, False, p, wo, bo, training=True
    )[0].sin()


def dropped(*args: torch.Tensor) -> torch.Tensor:
    x, wi, bi, wo, bo = args
    found: torch.Tensor = attention(x, wi, bi, wo, bo, 0.3)
    return found


def gelu(x: Any, approximate: Any = "none") -> Any:
    return torch.ops.aten.gelu.default(x, approximate=approximate), (x, approximate)


def gelu_backward(saved: Any, g: Any) -> Any:
    return (torch.ops.aten.gelu_backward.default(g, saved[0], approximate=saved[1]),)


FUNCTIONS["aten.gelu.default"] = FUNCTIONS["torch.nn.functional.gelu"] = gelu, gelu_backward
