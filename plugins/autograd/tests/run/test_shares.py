"""Backwards that are asked for some gradients, or for some first and others later."""

from __future__ import annotations

import copy
import itertools
import weakref
from collections import Counter
from typing import Any

import pytest
import tj_core as tj
import torch
from torch import nn
from torch.nn import functional as F

PLUGINS = ["torch", "autograd"]


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down, self.frozen = nn.Linear(2 * width, width), nn.Linear(width, width)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.frozen(self.down(F.gelu(self.up(self.norm(x)))))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def products(run: Any) -> tuple[Any, int]:
    """The result of ``run``, and the number of matrix products that it took."""
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        result = run()
    ran = Counter(event.name for event in profile.function_events)
    return result, ran["aten::mm"] + ran["aten::addmm"]


def apart(f: Any, parameters: list[Any], between: Any = None) -> tuple[list[Any], list[int]]:
    """Gradients of the input, then of the parameters, and the products that each has taken."""
    torch.manual_seed(1)
    x = torch.randn(3, 4, requires_grad=True)
    hidden = x * 1
    y, tangent = f(hidden), torch.randn(3, 4)
    first, one = products(lambda: torch.autograd.grad(y, [hidden], tangent, retain_graph=True))
    if between is not None:
        between(tangent, first[0])
    second, other = products(lambda: torch.autograd.grad(y, parameters, tangent))
    return [*first, *second], [one, other]


def test_inputs_first_and_parameters_later() -> None:
    """As a schedule of a pipeline does; once that is seen, nothing is computed twice."""
    model = network()
    jitted, parameters = (
        tj.jit(model, plugins=PLUGINS),
        [p for p in model.parameters() if p.requires_grad],
    )
    counts = []
    for _ in range(4):
        expected, in_eager = apart(model, parameters)
        found, count = apart(jitted, parameters)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        counts.append(count)
    assert in_eager == [6, 10], "eager computes the way to the parameters again"
    assert counts[-1] == counts[-2] == [6, 4]


def write_tangent(tangent: torch.Tensor, _: torch.Tensor) -> None:
    tangent.mul_(2)


def write_gradient(_: torch.Tensor, gradient: torch.Tensor) -> None:
    gradient.zero_()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("between", [write_tangent, write_gradient])
def test_who_writes_between_finds_nothing_stale(between: Any) -> None:
    model = network()
    jitted, parameters = (
        tj.jit(model, plugins=PLUGINS),
        [p for p in model.parameters() if p.requires_grad],
    )
    for step in range(4):
        now = between if step == 3 else None
        expected, _ = apart(model, parameters, now)
        found, _ = apart(jitted, parameters, now)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def scaled(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    """Two results; ``v`` is written, and ``b`` is read on the way to all gradients."""
    h = F.linear(x * b, w, b)
    v = v.mul_(2).sin()
    return torch.tanh(h) * v, (x @ w.t()).sum() * b


def drawn(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    """A result of a checkpoint which draws again, so that the backward cannot be divided."""
    inner = lambda a: F.dropout(F.linear(a, w, b).sin(), 0.5)  # noqa: E731
    return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False) * v, (w * b).sum()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("f", [scaled, drawn])
@pytest.mark.parametrize("whole", [True, False])
def test_every_choice_of_gradients(f: Any, whole: bool) -> None:
    """One after the other, of one graph and of new ones, with tangents of two layouts."""
    jitted = tj.jit(f, plugins=PLUGINS)
    choices = [c for n in (1, 2, 3) for c in itertools.combinations(range(4), n)]
    for _ in range(2):
        for wanted, later in zip(choices, [*choices[1:], choices[0]], strict=True):
            results: list[Any] = []
            for fn in (f, jitted):
                torch.manual_seed(2)
                leaves = [torch.randn(s, requires_grad=True) for s in ((4, 4), (4, 4), (4, 4), 4)]
                asked = [leaf * 1 for leaf in leaves] if whole else leaves
                # The second is written, so that it is neither a leaf nor what is asked for.
                first, second = fn(asked[0], asked[1] * 1, *asked[2:])
                loss = first.sum() + second.sum() if len(wanted) == 2 else first.square().sum()
                for some, again in ((wanted, True), (later, False)):
                    values = [asked[i] for i in some]
                    results += torch.autograd.grad(loss, values, None, again, allow_unused=True)
            half = len(results) // 2
            torch.testing.assert_close(results[:half], results[half:], rtol=0, atol=0)


def test_nothing_is_kept_for_who_asks_once() -> None:
    """A graph that is retained does not keep tangents, nor what is computed on the way."""
    model = network()
    jitted = tj.jit(model, plugins=PLUGINS)
    x = torch.randn(3, 4, requires_grad=True)
    for _ in range(3):
        y = jitted(x)
        tangent = torch.randn(3, 4)
        gone = weakref.ref(tangent)
        torch.autograd.grad(y, [x], tangent, retain_graph=True)
        del tangent
        assert gone() is None


def test_hooks_on_saved_tensors_and_parameters_that_are_frozen() -> None:
    model = network()
    other = copy.deepcopy(model)
    for m in (model, other):
        m[0].up.weight.requires_grad_(False)
    jitted = tj.jit(model, plugins=PLUGINS)
    for _ in range(3):
        found = []
        for f, m in ((other, other), (jitted, model)):
            x = torch.ones(3, 4, requires_grad=True)
            with torch.autograd.graph.save_on_cpu():
                hooked = f(x)
            plain = f(x)
            for y in (hooked, plain):
                found.append(torch.autograd.grad(y.sum(), [x], retain_graph=True)[0])
                found.append(torch.autograd.grad(y.sum(), [m[1].up.weight, m[0].norm.bias]))
        torch.testing.assert_close(found[: len(found) // 2], found[len(found) // 2 :])


def test_one_leaf_is_accumulated() -> None:
    """``backward(inputs=...)`` writes the gradients of these alone."""
    model = network()
    jitted = tj.jit(model, plugins=PLUGINS)
    x = torch.ones(3, 4, requires_grad=True)
    for step in range(1, 4):
        jitted(x).sum().backward(inputs=[x, model[0].up.bias])
        assert model[1].up.weight.grad is None
        assert x.grad is not None
        expected = torch.autograd.grad(model(x).sum(), [x])[0]
        torch.testing.assert_close(x.grad, expected * step)
