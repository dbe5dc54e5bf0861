"""Groups of gradients: each is handed on when it is made, and all else is as in eager."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.gradients.orders import difference
from tj_conformance.gradients.random_programs import programs
from tj_conformance.seeds import collected
from tj_core.extend import Stage, TagSet, TraceEditor, Transform, requires_grad
from torch import nn
from torch.utils.checkpoint import checkpoint

events: list[str] = []
"""Backwards of `passed` and gradients that have been handed on, in order."""


@torch.library.custom_op("tj_groups::passed", mutates_args=())
def passed(x: torch.Tensor, name: str) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("tj_groups::passed_back", mutates_args=())
def passed_back(grad: torch.Tensor, name: str) -> torch.Tensor:
    events.append(name)
    return grad.clone()


passed.register_fake(lambda x, name: torch.empty_like(x))
passed_back.register_fake(lambda grad, name: torch.empty_like(grad))
passed.register_autograd(
    lambda ctx, grad: (passed_back(grad, ctx.name), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "name", inputs[1]),
)


def groups(size: int) -> Transform:
    """Puts ``size`` inputs that require gradients into each group, in their order."""

    def apply(trace: Any, context: Any) -> Any:
        editor = TraceEditor(trace, context.tags)
        wanted = [p for p in trace.inputs if requires_grad(p)]
        for i, p in enumerate(wanted):
            editor.inherit(p, TagSet({"GRADIENT_GROUP": i // size}))
        editor.append(*trace.calls)
        return editor.done()

    return Transform("groups", apply, Stage.ACQUIRED)


def jit(f: Any, size: int = 1) -> Any:
    return tj.jit(f, transforms=[groups(size)])


class Layer(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return passed(x + self.down(torch.tanh(self.up(x))), self.name)


class Net(nn.Module):
    def __init__(self, wrap: Callable[..., Any] = lambda f, x: f(x)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(map(Layer, "abc"))
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.wrap(layer, x)
        return x


def data(grad: bool = False) -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).requires_grad_(grad)


def gradients(model: Any) -> list[torch.Tensor | None]:
    return [p.grad for p in model.parameters()]


def equal(mine: Any, theirs: Any) -> None:
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) is (b is None)
        assert a is None or torch.equal(a, b)


@contextmanager
def seen() -> Iterator[list[str]]:
    events.clear()
    yield events


def noted(model: Net) -> None:
    """Let ``model`` note the gradients that are handed on, by layer."""
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, n=name: events.append(n))


def between(found: list[str]) -> list[set[str]]:
    """Gradients in ``found`` between the marks, as sets: several of a call come in any order."""
    parts: list[set[str]] = [set()]
    for event in found:
        if len(event) == 1:
            parts.append(set())
        else:
            parts[-1].add(event)
    return parts


def run(jitted: bool, size: int = 1, **options: Any) -> tuple[list[str], Net]:
    model = Net(**options)
    noted(model)
    with seen() as found:
        (jit(model, size) if jitted else model)(data()).pow(2).sum().backward()
        return list(found), model


def test_gradients_come_as_they_are_made() -> None:
    (mine, model), (theirs, other) = run(True), run(False)
    assert between(mine) == between(theirs)
    assert mine != sorted(mine)
    equal(gradients(model), gradients(other))


def test_a_group_comes_when_all_of_it_is_made() -> None:
    found, _ = run(True, size=4)  # the parameters of a layer
    names = [n for n, _ in Net().named_parameters()]
    layers = [{n for n in names if n.startswith(f"layers.{i}.")} for i in range(3)]
    assert between(found) == [set(), layers[2], layers[1], layers[0]]
    found, _ = run(True, size=12)
    assert between(found) == [set(), set(), set(), set(names)]


def test_groups_are_in_no_order_and_need_not_be_of_one_layer() -> None:
    def cross(trace: Any, context: Any) -> Any:
        editor = TraceEditor(trace, context.tags)
        for p in filter(requires_grad, trace.inputs):
            editor.inherit(p, TagSet({"GRADIENT_GROUP": "weight" in p.name}))
        editor.append(*trace.calls)
        return editor.done()

    model = Net()
    noted(model)
    with seen() as found:
        f = tj.jit(model, transforms=[Transform("cross", cross, Stage.ACQUIRED)])
        f(data()).sum().backward()
    assert between(found)[:3] == [set(), set(), set()]


def test_without_tags_there_is_one_node() -> None:
    out = tj.jit(Net())(data())
    assert {type(n).__name__ for n, _ in out.grad_fn.next_functions} == {"AccumulateGrad"}


def test_only_segments_that_are_needed_run() -> None:
    for f in (jit(Net()), Net()):
        with seen() as found:
            last = list(f.parameters())[-1]
            (grad,) = torch.autograd.grad(f(data()).sum(), [last])
            assert found == ["c"]
            assert grad.shape == (6,)


def test_gradients_of_an_input_and_a_parameter_used_twice() -> None:
    class Tied(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            return self.layers[0].up(x) @ self.layers[1].up.weight + super().forward(x)

    def one(jitted: bool) -> list[Any]:
        model, x = Tied(), data(True)
        f = jit(model) if jitted else model
        for _ in range(2):  # the second is added to the first
            f(x).pow(2).sum().backward()
        return [*gradients(model), x.grad]

    equal(one(True), one(False))


def test_a_retained_graph_and_one_that_is_freed() -> None:
    def one(f: Any) -> list[Any]:
        out = f(data()).pow(2).sum()
        out.backward(retain_graph=True)
        out.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            out.backward()
        return gradients(f)

    equal(one(jit(Net())), one(Net()))


class Smooth(Net):
    """Without marks, and so twice differentiable."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def run(layer: Any, x: torch.Tensor) -> torch.Tensor:
            return x + layer.down(torch.tanh(layer.up(x)))

        for layer in self.layers:
            x = self.wrap(functools.partial(run, layer), x)
        return x


def test_second_derivatives() -> None:
    def one(jitted: bool) -> list[Any]:
        model, x = Smooth().double(), data().double().requires_grad_()
        out = (jit(model) if jitted else model)(x).pow(2).mean()
        first = torch.autograd.grad(out, [x, *model.parameters()], create_graph=True)
        sum(g.pow(2).sum() for g in first).backward()
        return [*first, x.grad, *gradients(model)]

    for mine, theirs in zip(one(True), one(False), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_checkpointed_region_runs_again_once() -> None:
    def wrap(f: Any, x: Any) -> Any:
        return checkpoint(f, x, use_reentrant=False)

    (mine, model), (_, other) = run(True, wrap=wrap), run(False, wrap=wrap)
    equal(gradients(model), gradients(other))
    assert between(mine)[1] == {n for n, _ in model.named_parameters() if n.startswith("layers.2.")}
    jitted = jit(Smooth(wrap=wrap))
    jitted(data()).sum().backward()
    for which in ("backward", "backward.1", "backward.2"):
        names = [call.symbol.path for call in tj.last_trace(jitted, which).calls]
        assert sum(name in ("tanh", "tanh.default") for name in names) == 1


def test_hooks_on_parameters_replace_gradients() -> None:
    def one(f: Any) -> list[Any]:
        for p in f.parameters():
            p.register_hook(lambda g: g * 2)
        f(data()).sum().backward()
        return gradients(f)

    equal(one(jit(Net())), one(Net()))


def test_an_error_in_the_middle() -> None:
    def one(f: Any) -> list[Any]:
        def fail(_: Any) -> None:
            raise ValueError("stopped")

        f.layers[1].up.weight.register_post_accumulate_grad_hook(fail)
        out = f(data()).sum()
        with pytest.raises(ValueError, match="stopped"):
            out.backward()
        return [p.grad for layer in (f.layers[2], f.layers[0]) for p in layer.parameters()]

    equal(one(jit(Net())), one(Net()))


def test_a_saved_tensor_that_is_written_is_refused() -> None:
    for f in (jit(Net()), Net()):
        out = f(data()).sum()
        with torch.no_grad():
            f.layers[0].down.weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()
        assert f.layers[2].up.weight.grad is not None  # what came before the error
        assert f.layers[0].up.weight.grad is None


class Packed:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_what_a_segment_saves_is_freed_with_it() -> None:
    alive: weakref.WeakSet[Packed] = weakref.WeakSet()

    def pack(tensor: torch.Tensor) -> Packed:
        packed = Packed(tensor)
        alive.add(packed)
        return packed

    model, counts = Net(), list[int]()
    for layer in model.layers:
        layer.up.bias.register_post_accumulate_grad_hook(lambda _: counts.append(len(alive)))
    f = jit(model)
    f(data()).sum().backward()  # compiles
    counts.clear()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda p: p.tensor):
        out = f(data()).sum()
    total = len(alive)
    out.backward()
    assert total > counts[0] > counts[1] > counts[2] == 0


def scaled_twice(x: torch.Tensor, scale: torch.Tensor, w: torch.Tensor) -> Any:
    h = x * scale[..., None]
    near = torch.einsum("blhp,bsl->bshp", h, w)
    state = torch.einsum("blhp,bl->bhp", h, w[:, 0])
    return near + state.exp()[:, None], state.sin()


def test_a_sum_of_two_gradients_is_laid_out_as_the_first_in_eager() -> None:
    """A reduction of such a sum rounds by its strides."""

    def one(f: Any) -> list[Any]:
        torch.manual_seed(0)
        leaves = [torch.randn(s).requires_grad_() for s in ((2, 64, 4, 9), (2, 64, 4), (2, 64, 64))]
        outs = f(*leaves)
        torch.autograd.backward(outs, [torch.randn_like(out) for out in outs])
        return [leaf.grad for leaf in leaves]

    equal(one(jit(scaled_twice)), one(scaled_twice))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("number", range(16))
def test_made_up_programs(number: int) -> None:
    assert difference(collected(programs(), 5, 16)[number], jit=jit) == ""
