"""Gradients of parts: calls are decomposed if a plugin or executor has a gradient for a part."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_autograd.joint.rules import GradRule
from tj_conformance.gradients.layer_norm import layer_norm_backward, native_layer_norm
from tj_core.contract.decline import Decline
from tj_core.contract.executors import Claim, Executor, Pair
from tj_core.contract.rules import RuleTable
from tj_core.extend import Replacement, Transform
from tj_core.host.hookspecs import hookimpl
from tj_core.ir.stage import Stage
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.sampled(4)

ADDMM = "aten.addmm.default"
NORM = "aten.native_layer_norm.default"
SOFTMAX = "aten._softmax.default"
RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def addmm(bias, x, w, *, beta=1, alpha=1):
    return torch.addmm(bias, x, w, beta=beta, alpha=alpha), (x, w)


def addmm_backward(saved, g):
    x, w = saved
    return g.sum(0), g @ w.t(), (g.t() @ x).t()


def softmax(x, dim, half_to_float):
    out = torch.ops.aten._softmax.default(x, dim, half_to_float)
    return out, (out, dim)


def softmax_backward(saved, g):
    out, dim = saved
    return (torch.ops.aten._softmax_backward_data.default(g, out, dim, out.dtype),)


def linear(x, w, b=None):
    return F.linear(x, w, b), (x, w)


def linear_backward(saved, g):
    x, w = saved
    rows, columns = g.flatten(0, -2), x.flatten(0, -2)
    gx = (rows @ w).view(x.shape)
    return gx, (rows.t() @ columns), rows.sum(0)


def div(x, y):
    return torch.div(x, y), (x, y)


def div_backward(saved, g):
    x, y = saved
    return g / y, -g * ((x / y) / y)


FUNCTIONS = {
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


def attention(x, wi, bi, wo, bo, p=0.0):
    return F.multi_head_attention_forward(
        x, x, x, 8, 2, wi, bi, None, None, False, p, wo, bo, training=True
    )[0].sin()


def dropped(*args: torch.Tensor) -> torch.Tensor:
    return attention(*args, p=0.3)


LINEAR, DROPOUT = "torch.nn.functional.linear", "torch.nn.functional.dropout"
WEIGHTS = [(5, 3, 8), (24, 8), (24,), (8, 8), (8,)]

CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], str, int]] = {
    "linear": (lambda x, w, b: F.linear(x.sin(), w, b).sin(), [(2, 3, 4), (5, 4), (5,)], ADDMM, 1),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b) * 2, [(3, 4), (4,), (4,)], NORM, 1),
    "softmax": (lambda x: F.softmax(x * 2, -1), [(3, 4)], SOFTMAX, 1),
    "attention": (attention, WEIGHTS, ADDMM, 2),
    "attention, softmax": (attention, WEIGHTS, SOFTMAX, 1),
    "attention with dropout": (dropped, WEIGHTS, ADDMM, 2),
    "attention, linear": (attention, WEIGHTS, LINEAR, 2),
    "attention with dropout, linear": (dropped, WEIGHTS, LINEAR, 2),
    "normalize": (lambda x: F.normalize(x).sin(), [(3, 4)], "torch.div", 1),
    "a module": (
        lambda x, w, b, v: F.relu(F.linear(F.layer_norm(x, (4,)), w, b)) @ v,
        [(3, 4), (5, 4), (5,), (5, 2)],
        ADDMM,
        1,
    ),
}


@pytest.mark.parametrize("how", ["rule", "pair"])
@pytest.mark.parametrize("case", CASES)
def test_a_part_has_a_gradient(case: str, how: str) -> None:
    fn, shapes, key, count = CASES[case]
    made = rule(key) if how == "rule" else pair("mine", key)
    jitted = check(fn, parameters(*shapes), made)
    owner = "Rules" if how == "rule" else "mine"
    assert set(decomposed(jitted)) == {f"decomposed: {key} of {owner}"}
    assert [whose for r, whose, _ in rows(jitted) if r == key] == [owner] * count
    assert RAN.count("mine back") == (0 if how == "rule" else count)
    assert RAN.count("mine") >= RAN.count("mine back")  # division may run again in the backward


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_parts_against_finite_differences(case: str) -> None:
    fn, shapes, key, _ = CASES[case]
    args = parameters(*shapes, dtype=torch.float64)
    jitted = tj.jit(fn, session=tj.Session([rule(key), "torch", "autograd"]))

    def seeded(*args: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return jitted(*args)

    assert torch.autograd.gradcheck(seeded, args, fast_mode=True)


def test_what_has_no_such_part_stays_whole() -> None:
    jitted = check(
        lambda x: F.softmax(F.layer_norm(x, (4,)), -1), parameters((3, 4)), rule(SOFTMAX)
    )
    names = [c.symbol.qualname for c in tj.last_trace(jitted, stage="JOINT").calls]
    assert "torch.nn.functional.layer_norm.augmented" in names
    assert "torch.nn.functional.softmax" not in names
    assert SOFTMAX in names


def test_the_gradient_of_the_whole_comes_first() -> None:
    """Its owner may be an executor, a plugin, or tj-autograd itself."""
    args = parameters((3, 4), (5, 4), (5,))
    jitted = check(lambda x, w, b: F.linear(x, w, b), args, pair("inner", ADDMM), rule(LINEAR))
    assert rows(jitted) == [(LINEAR, "Rules", "")]
    assert RAN == []
    key = "aten.mul.Tensor"
    FUNCTIONS[key] = (lambda x, y: (x * y, (y,)), lambda saved, g: (g * saved[0],))
    jitted = check(lambda x: F.dropout(x * 2, 0.5), parameters((3, 4)), rule(key))
    assert ("torch.nn.functional.dropout", "autograd", "") in rows(jitted)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_executors_are_asked_in_order(order: tuple[str, str]) -> None:
    args = parameters((3, 4), (5, 4), (5,))
    made = [pair(name, ADDMM) for name in order]
    jitted = check(lambda x, w, b: F.linear(x, w, b), args, *made, rule(ADDMM))
    assert decomposed(jitted) == [f"decomposed: {ADDMM} of {order[0]}"]
    assert [order[0], f"{order[0]} back"] == RAN


def test_a_gradient_that_declines_opens_nothing() -> None:
    def small(call: Any) -> Any:
        return True if call.flat_outs[0].shape[0] > 3 else Decline("too small")

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.linear(x[:3], w, b).sum() + F.linear(x, w, b)

    for made in (rule(ADDMM, small), pair("mine", ADDMM, small)):
        jitted = check(f, parameters((5, 4), (6, 4), (6,)), made)
        joint = tj.last_trace(jitted, stage="JOINT").calls
        assert [c.symbol.qualname for c in joint].count("torch.nn.functional.linear") == 1
        assert len(decomposed(jitted)) == 1
    declining = rule(ADDMM, lambda call: Decline("not today"))
    jitted = check(f, parameters((5, 4), (6, 4), (6,)), declining)
    assert decomposed(jitted) == []


def test_tags_parents_and_lines_of_parts() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = tj.tag(F.linear(x.sin(), w, b), "SAVE")  # this line
        return y.exp() * y

    jitted = check(f, parameters((2, 3, 4), (5, 4), (5,)), rule(ADDMM))
    joint = tj.last_trace(jitted, stage="JOINT").calls
    inner = next(c for c in joint if c.symbol.qualname == ADDMM)
    assert inner.parent == "y"
    assert "this line" in inner.source.text
    back = next(c for c in joint if c.symbol.qualname == f"{ADDMM}.backward")
    assert back.parent == inner.flat_outs[0].name
    assert "this line" in back.source.text
    (y,) = (p for c in joint for p in c.flat_outs if p.name == "y")
    assert "SAVE" in y.tags


def test_other_parts_have_the_gradients_they_would_have_alone() -> None:
    """Dropout has a rule of tj-autograd's own."""
    jitted = check(dropped, parameters(*WEIGHTS), rule(LINEAR))
    assert (DROPOUT, "autograd", "") in rows(jitted)


@pytest.mark.parametrize("key", [LINEAR, SOFTMAX])
def test_parts_of_a_checkpointed_region_run_again(key: str) -> None:
    """They run from the same states of the generator."""

    def f(*args: torch.Tensor) -> torch.Tensor:
        return checkpoint(dropped, *args, use_reentrant=False) * 2

    jitted = check(f, parameters(*WEIGHTS), rule(key))
    assert decomposed(jitted) == [f"decomposed: {key} of Rules"]
    trace = tj.last_trace(jitted, stage="SPLIT")
    given = {p.name for p in trace.inputs}
    made = [p for p in trace.outputs[2] if p.name not in given]
    assert [type(p).__name__ for p in made] == ["OpaqueProxy"]


# ------------------------------------------------------------------------------- not decomposed


def cell(x, w):
    """Writes, inside of its body, to a value that needs a gradient."""
    state = torch.ones(2, 3), torch.ones(2, 3)
    return torch.lstm_cell(x, state, w, torch.ones(12, 3), torch.ones(12), torch.ones(12))[0]


def test_what_autograd_sees_is_something_else() -> None:
    jitted = check(cell, parameters((2, 4), (12, 4)), rule(ADDMM))
    assert decomposed(jitted) == []
    said = [why for r, _, why in rows(jitted) if r == "derived" and why]
    assert said == [
        f"Rules: its gradient of {ADDMM} is not used: its body computes its values in another way "
        "than autograd sees"
    ]


@torch.compiler.allow_in_graph
def straight_through(x):
    soft = F.softmax(x, -1)
    return soft * soft.detach()


def test_a_body_that_detaches() -> None:
    check(lambda x: straight_through(x).sin(), parameters((3, 4)), rule(SOFTMAX))


@torch.compiler.allow_in_graph
def switching(x):
    with torch.no_grad():
        scale = F.softmax(x, -1)
    return F.softmax(x * scale, -1)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.softmax(x, -1) * 2

    @staticmethod
    def backward(ctx, g):
        return g * 5


@torch.compiler.allow_in_graph
def with_function(x):
    return Twice.apply(x)


@pytest.mark.parametrize("fn", [switching, with_function])
def test_bodies_that_say_less_of_gradients_than_calls(fn: Any) -> None:
    assert decomposed(check(lambda x: fn(x).sin(), parameters((3, 4)), rule(SOFTMAX))) == []


# ------------------------------------------------------------------------------- levels


def edited() -> Transform:
    """A transform that edits the bodies of all exact gelus."""
    rules: RuleTable[Any] = RuleTable("approximate")

    @rules.register("aten.gelu.default")
    def approximate(call: Any, edit: Any) -> Replacement | None:
        if call.kwargs:
            return None
        name = call.flat_outs[0].name
        made = edit.call(
            "torch.nn.functional.gelu", *call.args, approximate="tanh", outputs=(name,)
        )
        return Replacement((made,))

    return Transform("approximate", lambda t, c: c.rewrite(t, rules), after=Stage.ACQUIRED)


def gelu(x, approximate="none"):
    return torch.ops.aten.gelu.default(x, approximate=approximate), (x, approximate)


def gelu_backward(saved, g):
    return (torch.ops.aten.gelu_backward.default(g, saved[0], approximate=saved[1]),)


FUNCTIONS["aten.gelu.default"] = FUNCTIONS["torch.nn.functional.gelu"] = gelu, gelu_backward


@pytest.mark.parametrize("key", [None, "aten.gelu.default", "torch.nn.functional.gelu"])
def test_calls_that_are_their_bodies_are_decomposed_level_by_level(key: str | None) -> None:
    plugins = [] if key is None else [rule(key)]
    session = tj.Session([*plugins, "torch", "autograd"])
    jitted = tj.jit(lambda x: F.gelu(x.sin()), session=session, transforms=[edited()])
    args = parameters((3, 4))
    compare(jitted, lambda x: F.gelu(x.sin(), approximate="tanh"), args)
    expected = ["decomposed: it is what its body says"]
    if key == "aten.gelu.default":
        expected.append(f"decomposed: {key} of Rules")
    assert decomposed(jitted) == expected
    last = ("derived", "autograd") if key is None else (key, "Rules")
    assert last in [(r, whose) for r, whose, _ in rows(jitted)]


def test_second_derivatives_of_decomposed_calls() -> None:
    """They are PyTorch's, of the program as it was."""
    fn, shapes, key, _ = CASES["layer_norm"]
    args = parameters(*shapes, dtype=torch.float64)
    jitted = tj.jit(fn, session=tj.Session([rule(key), "torch", "autograd"]))
    assert torch.autograd.gradgradcheck(jitted, args, fast_mode=True)


def test_a_layer_repeated_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import tj_torch.ops.service as module

    runs: list[Any] = []
    run = module.observed
    monkeypatch.setattr(module, "observed", lambda *a: runs.append(a) or run(*a))

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = F.linear(x, w, b)
        return x

    assert len(decomposed(check(f, parameters((3, 4), (4, 4), (4,)), rule(ADDMM)))) == 4
    assert len(runs) == 1
    check(f, parameters((3, 4), (4, 4), (4,)), rule(SOFTMAX))
    check(f, parameters((3, 4), (4, 4), (4,)))
    assert len(runs) == 1
