"""Programs that JOINT declines: they run as acquired, with eager's results, and `tj.explain` says
why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.versions import left_to_this_version
from torch.utils.checkpoint import checkpoint

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def writes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x @ w
    h.mul_(2)
    return h.sum()


def writes_what_is_saved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x @ w
    y = (h * h).sum()
    h.mul_(2)
    return y


def writes_its_argument(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.mul_(w.sum().detach())
    return (x * w.sum()).sum()


def writes_what_could_run_again(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x + w.sum()  # its result is saved, not its argument
    x.mul_(2)
    return (y * y).sin().sum()


def returns_a_view(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).t()


def switches_gradients_on(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return (x @ w).sin().sum()


def through_a_function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return Given.apply(x @ w)  # returned: its caller may look at what was written


class Given(torch.autograd.Function):
    """Writes its argument, and bumps its version counter."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 3


TAKEN = [writes, writes_its_argument, writes_what_could_run_again, returns_a_view]


def gradients(fn: Program) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    torch.manual_seed(1)
    out = fn(x, w)
    out.sum().backward()
    assert w.grad is not None
    return out, x, w.grad


@pytest.mark.parametrize("f", TAKEN)
def test_programs_that_write_and_return_views_have_gradients_as_traces(f: Program) -> None:
    jitted = tj.jit(f)
    for mine, theirs in zip(gradients(jitted), gradients(f), strict=True):
        assert torch.equal(mine, theirs)
        assert mine._version == theirs._version
    assert tj.explain(jitted).declined == ()
    assert {"FUNCTIONAL", "JOINT", "SPLIT"} <= {t.stage.name for t in tj.last_traces(jitted)}
    if f is not writes:  # what that writes nobody else sees
        assert tj.last_trace(jitted, "epilogue").calls[0].symbol.qualname == "tj.program"


def test_a_gradient_that_eager_refuses_is_refused() -> None:
    """PyTorch's own autograd takes it, of the acquired program, and says why it cannot."""
    jitted = tj.jit(writes_what_is_saved)
    out = jitted(torch.ones(2, 2), torch.ones(2, 2, requires_grad=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
    (name, answer), *_ = tj.explain(jitted).declined
    assert (name, answer.reason) == ("joint", "a value that a gradient needs is written to later")


def test_a_program_that_is_declined_is_differentiated_by_pytorch() -> None:
    jitted = tj.jit(through_a_function)
    for mine, theirs in zip(gradients(jitted), gradients(through_a_function), strict=True):
        assert torch.equal(mine, theirs)
    if left_to_this_version(tj.stats(jitted).fallbacks):
        pytest.skip("PyTorch 2.10: Functions are left to PyTorch")
    (name, answer), *_ = tj.explain(jitted).declined
    assert name == "functionalize"
    assert "tj.autograd_function writes" in answer.reason
    assert answer.source is not None
    assert answer.source.file == __file__
    assert {"JOINT", "SPLIT"}.isdisjoint(t.stage.name for t in tj.last_traces(jitted))
    assert f"without functionalize: {answer.reason}" in str(tj.explain(jitted))


def test_gradients_that_are_switched_on_inside_are_pytorchs() -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    jitted = tj.jit(switches_gradients_on)
    with torch.no_grad():
        out = jitted(x, w)
        expected = switches_gradients_on(x, w)
    assert torch.equal(torch.autograd.grad(out, w)[0], torch.autograd.grad(expected, w)[0])
    (name, answer), *_ = tj.explain(jitted).declined
    assert (name, answer.reason) == ("joint", "gradients are off where it is called, and on inside")


def writes_one_memory_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x @ w
    torch._foreach_mul_([h, h], 3)
    return h.sum()


def test_what_a_call_does_may_be_unknown() -> None:
    """A call with unknown effects must not be differentiated around as if it wrote nothing."""
    jitted = tj.jit(writes_one_memory_twice)
    for mine, theirs in zip(gradients(jitted), gradients(writes_one_memory_twice), strict=True):
        assert torch.equal(mine, theirs)
    reasons = dict(tj.explain(jitted).declined)
    assert reasons["joint"].reason == "torch._foreach_mul_ may write to what it is given"


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_tensors_without_strides_are_differentiated_by_pytorch() -> None:
    """Also their gradients are such tensors, which fake tensors do not know."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.to_dense().sin()

    x = torch.randn(3, 4).to_mkldnn().requires_grad_()
    jitted = tj.jit(program)
    (mine,), (theirs,) = (torch.autograd.grad(f(x).sum(), x) for f in (jitted, program))
    assert mine.layout == theirs.layout == torch._mkldnn
    assert torch.equal(mine.to_dense(), theirs.to_dense())
    reasons = dict(tj.explain(jitted).declined)
    assert (
        reasons["joint"].reason == "torch.Tensor.to_dense takes or makes a tensor without strides"
    )


def test_a_program_that_needs_no_gradient_is_not_declined() -> None:
    jitted = tj.jit(writes)
    jitted(torch.ones(2, 2), torch.ones(2, 2))
    assert tj.explain(jitted).declined == ()


def test_a_checkpoint_is_computed_again() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        return checkpoint(lambda a: (a @ w).sin() @ w, x, use_reentrant=False).sum()

    jitted = tj.jit(f)
    for mine, theirs in zip(gradients(jitted), gradients(f), strict=True):
        assert torch.equal(mine, theirs)
    forward, backward = (tj.last_trace(jitted, which) for which in ("forward", "backward"))
    assert {p.name for p in forward.outputs[2]} <= {p.name for p in forward.inputs}
    assert sum("sin" in c.symbol.name for c in backward.calls) >= 1


def test_a_result_that_depends_on_a_view_made_without_gradients() -> None:
    """The view requires grad iff its base does, and passes no gradient on."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x.sin()
        with torch.no_grad():
            turned = h.t()
        return turned, turned.sin()

    x = torch.ones(2, 3, requires_grad=True)
    jitted = tj.jit(f)
    for g in (f, jitted):
        turned, y = g(x)
        assert turned.is_leaf
        assert turned.requires_grad
        assert y.grad_fn is not None
        y.sum().backward()
        assert turned.grad is None
        assert x.grad is None
    (_, declined), *_ = tj.explain(jitted).declined
    assert declined.reason == "a result depends on a view made without gradients"
