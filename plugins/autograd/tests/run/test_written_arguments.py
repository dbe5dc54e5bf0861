"""Arguments that are written, and on whose new value results depend: gradients go through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from torch.nn import functional as F

Program = Callable[[torch.Tensor, torch.Tensor], Any]


def activation(x: torch.Tensor, w: torch.Tensor) -> Any:
    F.relu(x, inplace=True)
    return (x @ w).tanh()


def written_twice(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.mul_(2)
    before = x.exp()
    x.add_(w.sum())
    return before.sum(), (x * 3).sum()


def a_part(x: torch.Tensor, w: torch.Tensor) -> Any:
    x[0].mul_(2)
    x[1:].add_(w[0])
    return (x * x).sum() + w.sum()


def from_elsewhere(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.copy_(w.sum(0))
    return x.sin().sum()


def returned(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.sigmoid_()
    return x, (x @ w).sum()


def a_view_is_returned(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.sigmoid_()
    return x.t(), (x @ w).sum()


def used_in_several_ways(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.clamp_(-1, 1)
    a, b = x @ w, x.sin()
    return a, (a * b).sum() + x.sum(), x.exp()


def two_losses(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.mul_(w.sum())
    return x.sum(), x.exp().sum()


def both(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.mul_(2)
    w.mul_(x.sum())
    return (x @ w).sum()


PROGRAMS = [
    activation,
    written_twice,
    a_part,
    from_elsewhere,
    returned,
    a_view_is_returned,
    used_in_several_ways,
    two_losses,
    both,
]
programs = pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)

KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "result": lambda x: x * 1,
    "view of a result": lambda x: (x * 1).t().contiguous().t(),
    "part of a result": lambda x: torch.cat([x, x])[1 : 1 + x.shape[0]],
    "no gradient": lambda x: x.detach().clone(),
}
pytestmark = [
    pytest.mark.sampled(16),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]
kinds = pytest.mark.parametrize("kind", KINDS)


class Call:
    """One call of ``fn``: the leaves, the arguments, the results, and observations of hooks."""

    def __init__(self, fn: Program, kind: str, n: int = 4) -> None:
        torch.manual_seed(0)
        made: dict[str, Any] = {"dtype": torch.float64, "requires_grad": True}
        self.leaves = [torch.randn(n, 3, **made), torch.randn(3, 3, **made)]
        self.given = [KINDS[kind](self.leaves[0]), self.leaves[1] * 1]
        self.seen: list[tuple[str, torch.Tensor]] = []
        for name, t in zip("xw", self.given, strict=True):
            if not t._is_view():  # eager's gradient goes from a view that is written to its base
                self.hook(f"{name} before", t)
        self.versions = [t._version for t in self.given]
        outs = fn(*self.given)
        self.outs = outs if isinstance(outs, tuple) else (outs,)
        for name, t in zip("xw", self.given, strict=True):
            self.hook(f"{name} after", t)

    def hook(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.requires_grad:
            tensor.register_hook(lambda g: self.seen.append((name, g.detach().clone())))

    def state(self) -> list[Any]:
        versions = [t._version - v for t, v in zip(self.given, self.versions, strict=True)]
        marks = [(t.requires_grad, t.is_leaf, t._is_view()) for t in (*self.given, *self.outs)]
        return [*versions, *marks, *(t.detach() for t in (*self.given, *self.outs)), *self.hooked()]

    def hooked(self) -> list[Any]:
        """Observations of hooks, sorted: nodes run in another order than in eager."""
        return sorted(self.seen, key=lambda pair: pair[0])


def backward(call: Call) -> list[Any]:
    for t in (*call.given, *call.outs):
        if t.requires_grad:
            t.retain_grad()
    (call.outs[-1] ** 2).sum().backward()
    held = (*call.given, *call.outs, *call.leaves)
    return [t.grad if t.is_leaf or t.retains_grad else None for t in held]


def taken(call: Call) -> list[Any]:
    """``torch.autograd.grad`` of each result by each argument, and by the leaves."""
    wanted = [t for t in (*call.given, *call.leaves) if t.requires_grad]
    return [
        g
        for out in call.outs
        for g in torch.autograd.grad(out.sum(), wanted, retain_graph=True, allow_unused=True)
    ]


def twice(call: Call) -> list[Any]:
    """Gradients of gradients; of hooks only observations before the call."""
    wanted = [t for t in (*call.given, *call.leaves) if t.requires_grad]
    out = (call.outs[-1] ** 2).sum()
    first = torch.autograd.grad(out, wanted, create_graph=True, allow_unused=True)
    call.seen.clear()
    total = sum((g * g).sum() for g in first if g is not None and g.requires_grad)
    second = torch.autograd.grad(total, call.leaves, allow_unused=True)
    call.seen.clear()
    return [*first, *second]


def later(call: Call) -> list[Any]:
    """Results of a later program on the arguments."""
    sum((t * 3).sum() for t in (*call.given, *call.outs)).backward()
    return [leaf.grad for leaf in call.leaves]


def equal(mine: Any, theirs: Any) -> None:
    assert type(mine) is type(theirs), (mine, theirs)
    if isinstance(mine, list | tuple):
        assert len(mine) == len(theirs), (mine, theirs)
        for a, b in zip(mine, theirs, strict=True):
            equal(a, b)
    elif isinstance(mine, torch.Tensor):
        torch.testing.assert_close(mine, theirs)
    else:
        assert mine == theirs


def look(fn: Program, kind: str, way: Callable[[Call], list[Any]], n: int = 4) -> list[Any]:
    call = Call(fn, kind, n)
    before = call.state()
    try:
        found: list[Any] = way(call)
    except RuntimeError as error:
        found = [str(error).partition(":")[0]]
    return [*before, *found, *call.hooked()]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("way", [backward, taken, twice, later], ids=lambda f: f.__name__)
@kinds
@programs
def test_gradients_go_through_what_is_written(
    f: Program, kind: str, way: Callable[[Call], list[Any]]
) -> None:
    jitted = tj.jit(f)
    equal(look(jitted, kind, way), look(f, kind, way))
    assert tj.explain(jitted).declined == ()


@programs
def test_under_the_backend(f: Program) -> None:
    torch.compiler.reset()
    equal(look(torch.compile(f, backend="tj"), "result", backward), look(f, "result", backward))


@pytest.mark.parametrize("f", [activation, written_twice, a_part])
def test_sizes_that_are_symbols(f: Program) -> None:
    jitted = tj.jit(f, dynamic=True)
    for n in (4, 7, 5):
        equal(look(jitted, "result", backward, n), look(f, "result", backward, n))
    assert tj.stats(jitted).entries == 1
    assert tj.explain(jitted).declined == ()


@programs
def test_without_traced_gradients(f: Program) -> None:
    session = tj.Session(["torch"], overrides={"torch": {"functional": "always"}})
    jitted = tj.jit(f, session=session)
    equal(look(jitted, "result", backward), look(f, "result", backward))


def test_an_argument_is_version_checked_as_what_saved_it() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return (x * x).sum()

    for fn in (tj.jit(f), f):
        x = torch.ones(2, requires_grad=True) * 1
        y = fn(x)
        x.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_a_leaf_is_refused_as_in_eager() -> None:
    for fn in (tj.jit(activation), activation):
        x, w = torch.ones(2, 3, requires_grad=True), torch.ones(3, 3)
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            fn(x, w)
        torch.testing.assert_close(x, torch.ones(2, 3), check_stride=False, msg=str)


def before_and_after(x: torch.Tensor, w: torch.Tensor) -> Any:
    a = x * 3
    F.relu(x, inplace=True)
    return (a * x).sum()


def a_view_from_before(x: torch.Tensor, w: torch.Tensor) -> Any:
    a = x.t()
    x.mul_(2)
    return a, (x @ w).sum()


@pytest.mark.parametrize("way", [backward, taken, twice], ids=lambda f: f.__name__)
@pytest.mark.parametrize("f", [before_and_after, a_view_from_before], ids=lambda f: f.__name__)
def test_what_is_left_to_pytorch(f: Program, way: Callable[[Call], list[Any]]) -> None:
    jitted = tj.jit(f)
    equal(look(jitted, "result", way), look(f, "result", way))
    assert tj.explain(jitted).declined


@kinds
def test_arguments_that_share_memory(kind: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        x.mul_(2)
        return (x * w).sum()

    def shared(fn: Program) -> Program:
        return lambda x, w: fn(x, x.view(-1)[1:4]) if x.is_contiguous() else fn(x, x[0])

    jitted = tj.jit(f)
    equal(look(shared(jitted), kind, backward, 2), look(shared(f), kind, backward, 2))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("program", ["view", "view and base"])
def test_hooks_on_a_view_that_is_written(program: str, kept: bool) -> None:
    """Eager's gradient goes to the view's base by another way, on which the hook is not."""

    def view(v, base):
        v.mul_(3)
        return v * 2

    def view_and_base(v, base):
        v.mul_(3)
        return (v * 2).sum() + base.sum()

    def run(f: Program) -> Any:
        seen = []
        leaf = torch.ones(4, requires_grad=True)
        base = leaf * 1
        v = base[:2]
        handle = v.register_hook(lambda g: seen.append(g.tolist()) or g * 5)
        if not kept:
            handle.remove()
        out = f(v, base if program == "view and base" else leaf)
        out.register_hook(lambda g: seen.append("out"))
        out.sum().backward()
        return seen, leaf.grad.tolist()

    f = view if program == "view" else view_and_base
    jitted = tj.jit(f, plugins=["torch", "autograd"])
    assert [run(jitted) for _ in range(2)] == [run(f) for _ in range(2)]
