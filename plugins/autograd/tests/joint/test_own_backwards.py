"""Backwards that users wrote, of Functions and of custom operators: what they see as they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.gradients.own import WAYS
from tj_conformance.oracle.compare import assert_equal
from tj_suites.gradients.own_backwards import Program, function
from torch.autograd import forward_ad

X = torch.tensor([-1.0, 0.5, 2.0])

# Dynamo makes one where it captures a call of a Function, and looks at ``.grad`` of values.
pytestmark = [
    pytest.mark.sampled(8),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.skipif(
        torch.__version__ < (2, 11), reason="PyTorch 2.10: Functions are left to PyTorch"
    ),
]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Reset torch.compile between programs, which share their code."""
    torch._dynamo.reset()
    return


# --------------------------------------------------------------------------- what capture knows
#
# PyTorch runs a backward when it is asked for; capture runs it with the forward. Where that shows,
# the call is left to PyTorch.

RATE = 3.0


settings = {"rate": 2.0}


rate = 2.0


def by_settings(ctx, g):
    return g * settings["rate"]


def by_global(ctx, g):
    return g * rate


def by_constant(ctx, g):
    return g * RATE


def by_mode(ctx, g):
    return g * (2 if torch.is_grad_enabled() else 3)


def switched_off(ctx, g):
    with torch.no_grad():
        slope = ctx.saved_tensors[0].cos()
    return g * slope


class Tripled(torch.autograd.Function):
    """Triples, with a gradient of seven times the tangent."""

    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g * 7


def by_function(ctx, g):
    return Tripled.apply(g) * ctx.saved_tensors[0]


class NotMaterialized(torch.autograd.Function):
    """Says in ``setup_context`` that it takes None for a gradient that does not exist."""

    @staticmethod
    def forward(x):
        return x * 2, x * 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, a, b):
        if a is None or b is None:
            return (a if b is None else b) * 5
        return a + b


class AllMarked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 2
        ctx.mark_non_differentiable(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


class SomeMarked(AllMarked):
    @staticmethod
    def forward(ctx, x):
        y = x * 2
        ctx.mark_non_differentiable(y)
        return x * 3, y

    @staticmethod
    def backward(ctx, g, _):
        return g


class Product(torch.autograd.Function):
    """A product of matrices; its backward has another, and tells the type of that."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        inner = x @ x
        return g.float() * inner * (2 if inner.dtype == torch.float32 else 5)


class TooFew(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g


def keeps_argument(ctx, x):
    ctx.x = x


def by_attribute(ctx, g):
    return g * ctx.x


def saves_argument(ctx: Any, x: torch.Tensor) -> None:
    ctx.save_for_backward(x)


def plain(f: Program) -> Any:
    x = X.clone().requires_grad_()
    y = f(x)
    ys = y if isinstance(y, tuple) else (y,)
    tracked = [t for t in ys if t.requires_grad]
    each = [torch.autograd.grad((t**2).sum(), x, retain_graph=True) for t in tracked]
    return [t.detach() for t in ys], [t.requires_grad for t in ys], each


def second(f: Program) -> Any:
    x = X.clone().requires_grad_()
    (g,) = torch.autograd.grad((f(x) ** 2).sum(), x, create_graph=True)
    return g.detach(), torch.autograd.grad((g**2).sum(), x)


def changed(f: Program) -> Any:
    """Backward after a change of the values that the backward may read."""
    global rate
    x = X.clone().requires_grad_()
    z = x * 1
    y = f(z)
    try:
        rate = settings["rate"] = 11.0
        with torch.no_grad():
            z.mul_(3)
        return torch.autograd.grad(y.sum(), x)
    finally:
        rate = settings["rate"] = 2.0


def transformed(f: Program) -> Any:
    return f(X)


def under_autocast(f: Program) -> Any:
    x = X.outer(X).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(x)
    return y.detach(), torch.autograd.grad(y.float().sum(), x)


def wrong(f: Program) -> Any:
    y = f(X.clone().requires_grad_())
    with pytest.raises(RuntimeError, match="incorrect number of gradients") as error:
        y.sum().backward()
    return str(error.value)


by_settings_ = function(saves_argument, by_settings)


by_global_ = function(saves_argument, by_global)


by_constant_ = function(saves_argument, by_constant)


by_mode_ = function(saves_argument, by_mode)


switched_off_ = function(saves_argument, switched_off)


by_function_ = function(saves_argument, by_function)


by_attribute_ = function(keeps_argument, by_attribute)

SITUATIONS: dict[str, tuple[Program, Program, bool]] = {
    "gradients are switched": (lambda x: switched_off_(x), second, False),
    "it asks whether gradients are on": (lambda x: by_mode_(x), plain, False),
    "it asks that of a second gradient": (lambda x: by_mode_(x), second, False),
    "a dictionary that changes": (lambda x: by_settings_(x), changed, False),
    "a variable that changes": (lambda x: by_global_(x), changed, False),
    "a constant": (lambda x: by_constant_(x), second, True),
    "it applies a Function": (lambda x: by_function_(x), second, False),
    "missing gradients": (lambda x: NotMaterialized.apply(x), plain, False),
    "the only output is marked": (lambda x: AllMarked.apply(x), plain, False),
    "one output is marked": (lambda x: SomeMarked.apply(x), plain, True),
    "an argument on the context": (lambda x: by_attribute_(x), plain, True),
    "an argument on the context, written": (lambda x: by_attribute_(x), changed, True),
    "torch.func.grad": (
        lambda x: torch.func.grad(lambda x: by_setup.apply(x).sum())(x), transformed, False
    ),
    "the backward is out of autocast": (lambda x: Product.apply(x), under_autocast, True),
    "too few gradients": (lambda x: TooFew.apply(x, 2.0), wrong, False),
}  # fmt: skip


class by_setup(torch.autograd.Function):
    """Differentiable by `torch.func`, with another gradient than that of its computation."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_backward_sees_what_eagers_sees(name: str, way: str) -> None:
    f, measure, captured = SITUATIONS[name]
    compiled = WAYS[way](f)
    if captured or way == "backend":  # Dynamo says nothing of its graph breaks
        found = measure(compiled)
    else:
        with pytest.warns(tj.TjWarning, match="a torch.autograd.Function is left to PyTorch"):
            found = measure(compiled)
    assert_equal(found, measure(f))


@pytest.mark.parametrize("way", WAYS)
def test_a_constant_that_changes_is_an_error_and_no_old_number(way: str) -> None:
    global RATE
    y = WAYS[way](lambda x: by_constant_(x))(X.clone().requires_grad_())
    try:
        RATE = 4.0
        with pytest.raises(tj.TjError, match=r"RATE, .* was 3.0 in the forward, and is 4.0"):
            y.sum().backward()
    finally:
        RATE = 3.0


# --------------------------------------------------------------------------- what else may happen


class TwoWays(Tripled):
    """Has a derivative of its own for each mode of differentiation."""

    @staticmethod
    def jvp(ctx, t):
        return t * 5


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.filterwarnings("ignore::tj_core.TjWarning", "ignore:`torch.jit.script`")
def test_forward_mode_is_pytorchs(needs: bool, way: str) -> None:
    def dual(f: Program) -> Any:
        with forward_ad.dual_level():
            x = X.clone().requires_grad_(needs)
            given = forward_ad.make_dual(x, X.flip(0))
            return [t.detach() for t in forward_ad.unpack_dual(f(given))]

    for f in (lambda x: x.sin() * 2, lambda x: TwoWays.apply(x)):
        compiled = WAYS[way](f)
        compiled(X.clone().requires_grad_(needs))  # before there is a level, and after it
        assert_equal(dual(compiled), dual(f))
        assert_equal(plain(compiled), plain(f))
        torch._dynamo.reset()


@torch.library.custom_op("tj_tests::clearing", mutates_args=())
def clearing(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w


def clear(ctx, g):
    ctx.x.zero_()
    return g * ctx.saved_tensors[0], g * 3


def keep_both(ctx, inputs, output):
    ctx.x, w = inputs
    ctx.save_for_backward(w)


clearing.register_fake(lambda x, w: torch.empty_like(x))


clearing.register_autograd(clear, setup_context=keep_both)


@pytest.mark.parametrize("way", WAYS)
def test_a_write_in_the_backward_of_a_custom_operator(way: str) -> None:
    def run(f: Program) -> Any:
        x, w = X.clone().requires_grad_(), X.flip(0).requires_grad_()
        given = x * 2
        f(given, w).sum().backward()
        return given.detach(), x.grad, w.grad

    for f in (lambda a, w: clearing(a, w), lambda a, w: clearing(a.sin(), w) + a):
        assert_equal(run(WAYS[way](f)), run(f))
        torch._dynamo.reset()


@torch.library.custom_op("tj_tests::scaled_by_rate", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


SETTINGS = {"rate": 1.0}


def _note_rate(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.rate = SETTINGS["rate"]


scaled.register_fake(torch.empty_like)


scaled.register_autograd(lambda ctx, g: g * SETTINGS["rate"] * ctx.rate, setup_context=_note_rate)


def test_state_that_a_custom_operator_reads_is_that_of_the_run() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return scaled(x)

    jitted = tj.jit(f)
    for before, after in ((1.0, 2.0), (3.0, 4.0), (5.0, 5.0)):
        x = torch.ones(3, requires_grad=True)
        SETTINGS["rate"] = before
        out = jitted(x)
        SETTINGS["rate"] = after
        out.backward(torch.ones(3))
        assert x.grad is not None
        assert x.grad.tolist() == [before * after] * 3
    assert tj.stats(jitted).misses == 1
    assert "it reads SETTINGS" in str(tj.last_trace(jitted, stage="JOINT").history[-1].changes)
