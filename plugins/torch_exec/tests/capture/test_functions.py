"""`torch.autograd.Function`: the user's forward and backward, and marks of outputs."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from tj_core.extend import Claim, Executor, Replacement, RuleTable, Stage, Transform, hookimpl
from tj_torch.capture.dynamo.releases import captures_functions_in_steps
from torch.autograd import Function
from torch.autograd.function import once_differentiable

X = torch.linspace(-1, 1, 6).reshape(2, 3)
W = torch.linspace(0, 2, 6).reshape(2, 3)


class Scaled(Function):
    """Function that saves an input and a value, keeps a number, and returns no gradient for it."""

    @staticmethod
    def forward(ctx, x, k):
        y = x.exp()
        ctx.save_for_backward(x, y)
        ctx.k = k
        return y * k

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y * ctx.k * x.sign().abs(), None


class SavesOutput(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class Dirty(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 5


class Marked(Function):
    @staticmethod
    def forward(ctx, x):
        index, plain = x.argmax(-1), x + 1
        ctx.mark_non_differentiable(index, plain)
        return x * 2, index, plain

    @staticmethod
    def backward(ctx, g, *others):
        return g * 2


class Needs(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        first = g * w if ctx.needs_input_grad[0] else None
        return first, g * x * 7 if ctx.needs_input_grad[1] else None


class Unmaterialized(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.set_materialize_grads(False)
        return x * 2, w * 3

    @staticmethod
    def backward(ctx, a, b):
        return None if a is None else a * 2, None if b is None else b * 3


class Materialized(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * x, w * w

    @staticmethod
    def backward(ctx, a, b):
        x, w = ctx.saved_tensors
        return a * 2 * x, b * 2 * w


class WithSetup(Function):
    @staticmethod
    def forward(x, k):
        return x.sin() * k

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, k = inputs
        ctx.save_for_backward(x)
        ctx.k = k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * ctx.k, None


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class Switches(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            slope = x.cos()
        return g * slope


class Same(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 5


class View(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


class Objects(Function):
    @staticmethod
    def forward(ctx, x, settings, n=3):
        ctx.n = n
        return x * n * settings["scale"], "a word", 3

    @staticmethod
    def backward(ctx, g, *others):
        return g * ctx.n, None, None


class Random(Function):
    @staticmethod
    def forward(ctx, x):
        mask = torch.rand_like(x) > 0.5
        ctx.mask = mask
        return x * mask

    @staticmethod
    def backward(ctx, g):
        return g * ctx.mask


class Nested(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return SavesOutput.apply(x)

    @staticmethod
    def backward(ctx, g):
        return Scaled.apply(g, 2.0)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "saves inputs and values": lambda x, w: Scaled.apply(x * w, 3.0),
    "saves an output": lambda x, w: SavesOutput.apply(x) * w,
    "dirty": lambda x, w: Dirty.apply(x * w),
    "dirty, used before": lambda x, w: (y := x * w, Dirty.apply(y) + y)[1],
    "not differentiable": lambda x, w: Marked.apply(x * w),
    "needs both": lambda x, w: Needs.apply(x, w),
    "needs the first": lambda x, w: Needs.apply(x, w.detach()),
    "needs the second": lambda x, w: Needs.apply(x.detach(), w),
    "one of two outputs": lambda x, w: Materialized.apply(x, w)[0],
    "both outputs": lambda x, w: Materialized.apply(x, w),
    "setup_context": lambda x, w: WithSetup.apply(x * w, 2.0),
    "once": lambda x, w: Once.apply(x * w),
    "switches": lambda x, w: Switches.apply(x * w),
    "returns its input": lambda x, w: Same.apply(x) * w,
    "returns a view": lambda x, w: View.apply(x * w) + 1,
    "objects": lambda x, w: Objects.apply(x * w, {"scale": 2.0})[0],
    "random": lambda x, w: Random.apply(x * w),
    "nested": lambda x, w: Nested.apply(x * w),
    "twice": lambda x, w: Scaled.apply(Scaled.apply(x, 2.0), 3.0) * w,
    "unused": lambda x, w: (Scaled.apply(x, 2.0), x * w)[1],
}
TWICE_DIFFERENTIABLE = (
    "saves inputs and values", "saves an output", "needs both", "setup_context", "both outputs",
    "returns its input", "twice",
)  # fmt: skip


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return X.clone().requires_grad_(), W.clone().requires_grad_()


def first_order(f: Callable[..., Any]) -> Any:
    x, w = inputs()
    torch.manual_seed(7)
    out = f(x, w)
    outs = [t for t in (out if isinstance(out, tuple) else (out,)) if t.requires_grad]
    torch.autograd.backward([(t**2).sum() for t in outs])
    return out, x.grad, w.grad, x._version


def second_order(f: Callable[..., Any]) -> Any:
    x, w = inputs()
    out = f(x, w)
    outs = [t for t in (out if isinstance(out, tuple) else (out,)) if t.requires_grad]
    first = torch.autograd.grad([(t**2).sum() for t in outs], [x, w], create_graph=True)
    return (*first, *torch.autograd.grad([(t**2).sum() for t in first], [x, w]))


LEFT = ("switches", "nested") if captures_functions_in_steps() else tuple(PROGRAMS)
"""Functions with a backward that Dynamo does not capture exactly; PyTorch runs them.

Up to PyTorch 2.10 all Functions, since its capture cannot be checked.
"""
captured = pytest.mark.skipif(
    not captures_functions_in_steps(), reason="PyTorch 2.10: Functions are left to PyTorch"
)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in LEFT])
def test_values_and_gradients(name: str) -> None:
    f = PROGRAMS[name]
    jitted = tj.jit(f, check=2)
    for _ in range(2):
        assert_equal(first_order(jitted), first_order(f))
    assert (tj.stats(jitted).fallbacks, tj.stats(jitted).hits) == ((), 1)


@pytest.mark.sampled(12)
@captured
@pytest.mark.parametrize("name", TWICE_DIFFERENTIABLE)
def test_gradients_of_gradients(name: str) -> None:
    f = PROGRAMS[name]
    jitted = tj.jit(f)
    for _ in range(2):
        assert_equal(second_order(jitted), second_order(f))


@captured
def test_once_differentiable_stays_so() -> None:
    for f in (PROGRAMS["once"], tj.jit(PROGRAMS["once"])):
        x, w = inputs()
        (first,) = torch.autograd.grad((f(x, w) ** 2).sum(), [x], create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


@pytest.mark.parametrize("name", LEFT)
def test_what_capture_does_not_keep_is_left_to_pytorch(name: str) -> None:
    """Dynamo drops ``no_grad`` in a backward, and inlines Functions that are applied there."""
    f = PROGRAMS[name]
    jitted = tj.jit(f)
    with pytest.warns(tj.TjWarning, match="is left to PyTorch"):
        jitted(*inputs())
    assert_equal(first_order(jitted), first_order(f))
    if name in ("switches", "nested", *TWICE_DIFFERENTIABLE):
        assert_equal(second_order(jitted), second_order(f))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("ambient", [torch.no_grad, contextlib.nullcontext])
def test_values_without_gradients(name: str, ambient: Any) -> None:
    """Dynamo refuses a few of these; then the original function runs."""
    f = PROGRAMS[name]
    jitted = tj.jit(f)
    for _ in range(2):
        results = []
        for g in (jitted, f):
            torch.manual_seed(7)
            with ambient(), warnings.catch_warnings():
                warnings.simplefilter("ignore", tj.TjWarning)
                warnings.simplefilter("ignore", DeprecationWarning)  # Dynamo's, on its way out
                results.append(g(X.clone(), W.clone()))
        assert_equal(*results)


@captured
def test_missing_gradients_stay_missing() -> None:
    """Dynamo replaces them by zeros, so the original function runs."""

    def f(x, w):
        return Unmaterialized.apply(x, w)[0]

    jitted = tj.jit(f)
    with pytest.warns(tj.TjWarning, match="set_materialize_grads"):
        jitted(*inputs())
    assert_equal(first_order(jitted), first_order(f))
    assert first_order(jitted)[2] is None


# --------------------------------------------------------------------------- errors


@captured
def test_saved_tensors_are_version_checked() -> None:
    def f(x, w):
        y = SavesOutput.apply(x)
        y.mul_(2)
        return y

    for g in (f, tj.jit(f)):
        out = g(*inputs())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@captured
def test_dirty_leaves_are_refused_as_in_eager() -> None:
    def f(x, w):
        return Dirty.apply(x)

    for g in (f, tj.jit(f)):
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            g(*inputs())


@captured
def test_an_error_in_the_backward_names_the_users_line() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x, index):
            ctx.save_for_backward(index)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            (index,) = ctx.saved_tensors
            return g + g[index].sum(), None

    jitted = tj.jit(lambda x, i: Wrong.apply(x, i))
    jitted(X.clone().requires_grad_(), torch.tensor([1])).sum().backward()
    out = jitted(X.clone().requires_grad_(), torch.tensor([9]))
    with pytest.raises(IndexError) as raised:
        out.sum().backward()
    assert "return g + g[index].sum(), None" in "\n".join(raised.value.__notes__)


# --------------------------------------------------------------------------- traces


def pair(f: Any) -> Any:
    (call,) = (c for c in tj.last_trace(f).calls if c.symbol.qualname == "tj.autograd_function")
    return call


@captured
def test_forward_and_backward_are_regions_of_the_call() -> None:
    jitted = tj.jit(lambda x: Scaled.apply(x, 3.0))
    jitted(X.clone().requires_grad_())
    call = pair(jitted)
    forward, backward = call.subprograms
    assert (forward.name, backward.name) == ("forward", "backward")
    assert [c.symbol.name for c in forward.program.calls] == ["exp", "mul"]
    outputs, saved = forward.program.outputs
    assert len(outputs) == 1 or outputs.name  # the function's outputs, then what it saved
    tangents = len(backward.program.inputs) - len(saved)
    assert tangents == 1
    assert len(backward.program.outputs) == 1
    assert call.effects.removable
    again = tj.Trace.parse(
        str(tj.last_trace(jitted)),
        language=tj.last_trace(jitted).language,
        constants=tj.last_trace(jitted).constants(),
    )
    assert again == tj.last_trace(jitted)


@captured
def test_effects_of_the_forward_are_the_calls() -> None:
    dirty = tj.jit(PROGRAMS["dirty"])
    dirty(*inputs())
    assert pair(dirty).effects.mutates == (0,)
    drawing = tj.jit(PROGRAMS["random"])
    drawing(*inputs())
    assert pair(drawing).effects.ordered == ("random:cpu",)
    unused = tj.jit(PROGRAMS["unused"])
    unused(*inputs())
    assert [c.symbol.name for c in tj.last_trace(unused).calls] == ["mul"]


@captured
def test_rules_apply_to_both_halves() -> None:
    rules: RuleTable[Any] = RuleTable("swap")
    for old, new in (("torch.sin", "torch.cos"), ("torch.cos", "torch.sin")):
        rules.set(
            old,
            lambda call, edit, new=new: Replacement(
                (edit.call(new, *call.args, outputs=(call.outputs.name,)),)
            ),
        )
    swap = Transform("swap", lambda t, c: c.rewrite(t, rules), after=Stage.ACQUIRED)
    jitted = tj.jit(lambda x: WithSetup.apply(x, 2.0), transforms=[swap], check=2)
    x = X.clone().requires_grad_()
    out = jitted(x)
    assert_equal(out.detach(), X.cos() * 2.0)
    out.sum().backward()
    assert_equal(x.grad, X.sin() * 2.0)


class Taker:
    """Executor that claims whole Functions, or single calls of the forward."""

    tj_name = "taker"

    def __init__(self, symbol: str, run: Callable[..., Any]) -> None:
        self.symbol, self.run = symbol, run

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set(self.symbol, Claim(self.run))
        return (Executor("taker", claims),)


@captured
def test_executors_leave_functions_that_need_gradients_alone() -> None:
    taker = Taker("torch.exp", lambda x: torch.zeros_like(x))
    jitted = tj.jit(PROGRAMS["saves an output"], plugins=[taker, "torch"])
    assert_equal(first_order(jitted), first_order(PROGRAMS["saves an output"]))


def test_executors_run_the_forward_where_no_gradient_is_wanted() -> None:
    taker = Taker("torch.exp", lambda x: torch.full_like(x, 4.0))
    jitted = tj.jit(PROGRAMS["saves an output"], plugins=[taker, "torch"])
    assert_equal(jitted(X, W), W * 4.0)


@captured
@pytest.mark.parametrize("function", [Scaled, WithSetup], ids=["ctx", "setup_context"])
def test_a_number_that_a_function_keeps_may_differ_between_calls(function: Any) -> None:
    def program(x: torch.Tensor, k: float) -> torch.Tensor:
        return function.apply(x, k)

    jitted = tj.jit(program)
    for k in (0.5, 0.25, 1.0, 0.0, -2.0, 3):
        found, expected = (first_order(lambda x, w, f=f, k=k: f(x, k)) for f in (jitted, program))
        assert_equal(found, expected)
    assert not tj.stats(jitted).fallbacks
