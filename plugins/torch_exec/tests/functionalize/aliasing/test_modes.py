"""Grad modes, gradients of gradients, writes in backward, hooks, autocast, random numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tj_conformance.programs.aliasing import Program
from tj_conformance.programs.cases import Table, run_case
from tj_conformance.programs.scenes import one, overlapping, pair, same, viewed

case = Table()
GRAD = ("leaf", "inner")
LEAF = ("leaf",)
INNER = ("inner",)


def mixed(new):
    """Scene in which only the first argument requires grad."""
    return new.scene(new(2, 3), torch.ones(3))


# --------------------------------------------------------------------------- grad mode


@case("T:no_grad", layouts=(pair,))
def grad_mode_is_left_off(x, y):
    z = x * y
    torch.set_grad_enabled(False)
    return z, x * 2


@case("T:no_grad", layouts=(pair,), breaks=True, raises=LEAF)
def graph_breaks_inside_no_grad(x, y):
    with torch.no_grad():
        a = x * 2
        y.unsqueeze_(0)
        b = a + y
    y.squeeze_(0)
    with torch.no_grad():
        torch._dynamo.graph_break()
        c = x * y
    return a, b, c, x * y


@case("T:no_grad", layouts=(pair,), breaks=True)
def grad_mode_is_changed_and_graph_breaks(x, y):
    z = x * y
    torch.set_grad_enabled(False)
    torch._dynamo.graph_break()
    w = x * y
    torch.set_grad_enabled(True)
    return z, w, x * 3


@case("T:no_grad", layouts=(mixed, pair))
def mix_of_what_needs_gradients(x, y):
    z = x * y
    return z, y * 2, z.detach(), x.detach() * y, y.view(3, 1)


@case("T:no_grad", layouts=(pair, viewed))
def enabled_inside_disabled(x, y):
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
            v = a.view(-1)
        c = b.view(-1)
    return a, b, c, v


@case("T:no_grad", layouts=(pair, viewed))
def inference_mode(x, y):
    with torch.inference_mode():
        a = x * 2
        a.add_(1)
        v = a.view(-1)
    return v, x * 3


@case("T:no_grad", layouts=(pair,))
def inference_tensor_is_used(x, y):
    with torch.inference_mode():
        a = y.detach() * 2
    return x.detach() + a


@case("T:no_grad", layouts=(viewed,), breaks=())
def inference_mode_writes_an_argument(x, y):
    with torch.inference_mode():
        x.mul_(2)
    return x.detach() * 2


@case("T:no_grad", layouts=(pair,), kinds=GRAD)
def some_outputs_need_no_gradient(x, y):
    return (x * 2).detach(), (x * 2)[0].detach(), x.argmax(), x * y


@case("T:autograd boundary", layouts=(pair,), kinds=GRAD, breaks=INNER)
def gradient_inside(x, y):
    z = (x * y).sum()
    (g,) = torch.autograd.grad(z, x, create_graph=True)
    return g, z


# --------------------------------------------------------------------------- gradients of gradients


@case("T:autograd boundary", kinds=GRAD, create_graph=True, raises=LEAF)
def twice_differentiated_with_a_write(x, y):
    x.mul_(y)
    return x * x, y * y * x


@case("T:autograd boundary", kinds=GRAD, create_graph=True)
def twice_differentiated_with_a_hidden_write(x, y):
    with torch.no_grad():
        x.add_(1)
    return (x * x * y).view(-1), x.view(-1) * y.sum()


@case("T:autograd boundary", kinds=GRAD, create_graph=True, layouts=(overlapping, same))
def twice_differentiated_aliases(x, y):
    return x * x * y.sum(), y.view(-1)


# --------------------------------------------------------------------------- writes in backward


class ScalesItsGradient(torch.autograd.Function):
    """Function whose backward writes to its incoming gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.clone().mul_(2)


class CountsBackward(torch.autograd.Function):
    """Function whose backward writes to a buffer."""

    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.buffer.add_(1)
        return grad * 2, None


@case("I25", "T:mutation in backward", kinds=GRAD)
def gradient_is_written_in_backward(x, y):
    return ScalesItsGradient.apply(x) * y


def with_buffer(new):
    return new.scene(new(2, 3), torch.zeros(2))


@case("I23", "T:mutation in backward", layouts=(with_buffer,), kinds=GRAD, breaks=())
def argument_is_written_in_backward(x, buffer):
    return CountsBackward.apply(x, buffer)


@case("I24", "T:mutation in backward", layouts=(with_buffer,), kinds=GRAD, breaks=())
def argument_is_written_in_both(x, buffer):
    buffer.mul_(2).add_(1)
    return CountsBackward.apply(x * buffer[0], buffer)


@case("I25", "T:mutation in backward", kinds=GRAD)
def hook_writes_the_gradient(x, y):
    z = x * 2
    z.register_hook(lambda g: g.mul(2))
    return z * y


# --------------------------------------------------------------------------- autocast and random


@case("T:random", layouts=(pair, viewed))
def dropout(x, y):
    return F.dropout(x, 0.5, True) * y, torch.rand(3), torch.randn_like(y)


@case("T:random", raises=LEAF)
def random_numbers_around_a_write(x, y):
    a = torch.rand_like(x)
    x.mul_(a)
    with torch.no_grad():
        y.add_(torch.rand_like(y))
    return x, y


@case("T:random", raises=LEAF)
def autocast_around_a_write(x, y):
    with torch.autocast("cpu", torch.bfloat16):
        z = x @ x.t()
        x.mul_(2)
    return z, x, z.float() @ x


@case("T:random", layouts=(one,), kinds=("plain", "leaf"))
def autocast_view(x):
    with torch.autocast("cpu", torch.bfloat16):
        z = F.linear(x, x)
        return z.view(-1), z, x.t()


# --------------------------------------------------------------------------- ambient modes


def under(mode, program):
    def make():
        def run(*args):
            with mode():
                return program(*args)

        return Program(run)

    return make


@case("T:no_grad", layouts=(pair, viewed))
def checkpointed(x, y):
    def inner(x, y):
        return (x * y).relu() * y

    return torch.utils.checkpoint.checkpoint(inner, x, y, use_reentrant=False)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(**case.parameters())
def test_mode(case, kind) -> None:
    run_case(case, kind)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("kind", ["plain", "leaf"])
def test_called_under(mode, kind) -> None:
    from tj_conformance.programs.aliasing import Scene, check
    from tj_conformance.programs.scenes import placed

    def program(x, y):
        x.mul_(2)
        v = x.view(-1)
        return x, v, x * y, y.detach()

    def ambient(fn):
        def call(*args):
            with mode():
                return fn(*args)

        return call

    def jit(fn):
        import tj_core as tj

        return ambient(tj.jit(fn.__wrapped__))

    def make():
        call = ambient(program)
        call.__wrapped__ = program
        return Program(call)

    assert isinstance(placed(pair, kind)(), Scene)
    report = check(make, [placed(pair, kind), placed(viewed, kind)], jit=jit)
    assert report.ok, str(report)
