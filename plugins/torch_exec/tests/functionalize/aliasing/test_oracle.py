"""Check that the aliasing oracle fails for ways of jitting that are wrong in one respect."""

from __future__ import annotations

import copy
import functools

import pytest
import tj_core as tj
import torch
from tj_conformance.programs.aliasing import Program, check, stateless
from tj_conformance.programs.scenes import one, overlapping, pair, placed, same, viewed
from torch.utils import _pytree as pytree


def double(x, y):
    x.mul_(2)
    return x, x.view(-1), x * y


def fresh(x, y):
    z = x * y
    return z, z[0], z


def hidden(x, y):
    with torch.no_grad():
        x.mul_(2)
    return x * y


def tensors(tree):
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def each_tensor(fn):
    """Make a wrong way of jitting that applies ``fn`` to each returned tensor."""

    def jit(program):
        return lambda *args: pytree.tree_map_only(torch.Tensor, fn, program(*args))

    return jit


def clones_arguments(program):
    return lambda *args: program(*(a.clone() for a in args))


def forgets_to_copy_back(program):
    def call(*args):
        before = [a.detach().clone() for a in args]
        out = program(*args)
        with torch.no_grad():
            for a, b in zip(args, before, strict=True):
                torch._C._autograd._unsafe_set_version_counter((a,), (a._version - 1,))
                a.copy_(b)
        return out

    return call


def bumps_versions_twice(program):
    def call(*args):
        out = program(*args)
        torch.autograd.graph.increment_version(args[0])
        return out

    return call


def does_not_bump_versions(program):
    def call(*args):
        with torch.autograd._unsafe_preserve_version_counter(args[0]):
            return program(*args)

    return call


def forgets_gradients(program):
    def call(*args):
        with torch.no_grad():
            return program(*args)

    return call


def leaves_gradients_off(program):
    def call(*args):
        out = program(*args)
        torch.set_grad_enabled(False)
        return out

    return call


def draws_a_number(program):
    def call(*args):
        torch.rand(1)
        return program(*args)

    return call


def replaces_a_gradient(program):
    def call(*args):
        out = program(*args)
        for t in tensors(out):
            if t.requires_grad:
                t.register_hook(lambda g: g + 1)
        return out

    return call


def swallows(program):
    def call(*args):
        try:
            return program(*args)
        except RuntimeError:
            return None

    return call


def raises_another(program):
    def call(*args):
        try:
            return program(*args)
        except RuntimeError as error:
            raise TypeError from error

    return call


def works_once(program):
    calls = []

    def call(*args):
        calls.append(1)
        return program(*args) if len(calls) == 1 else torch.zeros(())

    return call


def makes_a_list(program):
    return lambda *args: list(program(*args))


def expects_the_first_aliasing(program):
    """Way of jitting with an unguarded alias: compiled for distinct arguments, wrong for others."""
    together = []

    def call(*args):
        together.append(args[0] is args[1])
        if together[0] is together[-1]:
            return program(*args)
        return program(args[0], args[1].clone())

    return call


def strides_of_its_own(t):
    return t.t().contiguous().t() if t.dim() == 2 and t.grad_fn is None else t


def a_view(t):
    return t.view_as(t)


WRONG = [
    (clones_arguments, double, pair),
    (forgets_to_copy_back, double, pair),
    (bumps_versions_twice, double, pair),
    (does_not_bump_versions, double, pair),
    (forgets_gradients, double, pair),
    (leaves_gradients_off, double, pair),
    (draws_a_number, double, pair),
    (replaces_a_gradient, fresh, pair),
    (works_once, fresh, pair),
    (makes_a_list, fresh, pair),
    (each_tensor(torch.clone), fresh, pair),
    (each_tensor(a_view), fresh, pair),
    (each_tensor(torch.Tensor.detach), double, pair),
    (each_tensor(copy.copy), double, pair),
    (each_tensor(lambda t: t.view(torch.int32)), fresh, pair),
    (clones_arguments, double, overlapping),
    (clones_arguments, hidden, viewed),
    (forgets_gradients, hidden, viewed),
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", ["plain", "inner"])
@pytest.mark.parametrize(("jit", "program", "layout"), WRONG)
def test_what_is_wrong_is_seen(jit, program, layout, kind) -> None:
    if kind == "plain" and jit in {forgets_gradients, replaces_a_gradient}:
        pytest.skip("nothing needs a gradient: not wrong")
    if kind == "plain" and program is hidden:
        pytest.skip("nothing needs a gradient: the same as double")
    assert not check(stateless(program), [placed(layout, kind)], jit=jit).ok


def test_an_error_has_to_be_eagers() -> None:
    scenes = [placed(pair, "leaf")]
    assert check(stateless(double), scenes, jit=lambda p: p).raised == ("RuntimeError",) * 2
    assert not check(stateless(double), scenes, jit=swallows).ok
    assert not check(stateless(double), scenes, jit=raises_another).ok


def test_the_arguments_count_after_an_error_too() -> None:
    def program(x, y):
        y.add_(1)
        return x @ torch.ones(7)

    assert check(stateless(program), [placed(pair, "plain")], jit=lambda p: p).ok
    assert not check(stateless(program), [placed(pair, "plain")], jit=clones_arguments).ok


def test_strides_count() -> None:
    def program(x):
        return x + 1

    scenes = [placed(one, "plain")]
    assert not check(stateless(program), scenes, jit=each_tensor(strides_of_its_own)).ok


def test_a_scene_after_another_counts() -> None:
    def program(x, y):
        x.add_(1)
        return x * y

    apart = [placed(pair, "plain")]
    jit = expects_the_first_aliasing
    assert check(stateless(program), apart * 2, jit=jit).ok
    assert not check(stateless(program), [*apart, placed(same, "plain")], jit=jit).ok


def test_state_counts() -> None:
    def make():
        seen = []

        def program(x):
            seen.append(x * 2)
            return x + 1

        return Program(program, lambda: tuple(seen))

    def keeps_nothing(program):
        kept = program.__closure__[0].cell_contents
        return lambda x: (program(x), kept.clear())[0]

    assert check(make, [placed(one, "inner")], jit=lambda p: p).ok
    assert not check(make, [placed(one, "inner")], jit=keeps_nothing).ok


def test_a_write_to_an_output_is_followed_into_saved_values() -> None:
    """Only a later backward shows that the saved value is another object."""

    def program(x):
        return x.exp()

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            out = x.exp()
            ctx.save_for_backward(out.clone())
            return out

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    report = check(stateless(program), [placed(one, "leaf")], jit=lambda _: Exp.apply)
    assert [str(d) for d in report.differences] == [
        "scene 0, write: written: after backward of roots [0]: None instead of raises RuntimeError"
    ]


def test_gradients_of_gradients_count() -> None:
    def once(program):
        return lambda x: Once.apply(x)

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return grad * 2 * ctx.saved_tensors[0].detach()

    def program(x):
        return x * x

    scenes = [placed(one, "leaf")]
    assert check(stateless(program), scenes, jit=once).ok
    assert not check(stateless(program), scenes, jit=once, create_graph=True).ok


@pytest.mark.parametrize("jit", [lambda p: p, functools.partial(torch.compile, backend="eager")])
@pytest.mark.parametrize("kind", ["plain", "inner"])
@pytest.mark.parametrize("layout", [pair, same, overlapping, viewed])
def test_what_is_right_passes(jit, layout, kind) -> None:
    torch._dynamo.reset()
    program = stateless(lambda x, y: x.add_(1) * y.sum())
    assert str(check(program, [placed(layout, kind)] * 2, jit=jit)) == "equal"


def test_fallbacks_and_entries_are_told() -> None:
    def breaks(x, y):
        x.t_()
        return x + 1

    report = check(stateless(breaks), [placed(pair, "plain")], jit=tj.jit)
    assert report.ok
    assert report.fallbacks
    report = check(stateless(fresh), [placed(pair, "plain")], jit=tj.jit)
    assert (report.fallbacks, report.entries) == ((), 1)
