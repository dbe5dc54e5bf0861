"""Lifetimes: values of a jitted program are freed when eager frees them, without the collector.

A value that the backward saves may differ from eager's, so the tests look at arguments, results and
the program's owner. With ``backend="tj"`` PyTorch's own Dynamo keeps arguments of a program that
raises during capture, whatever the backend: these are not tested.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.sampling import pairwise
from torch import nn

References = dict[str, "weakref.ref[Any]"]
Way = Callable[[Any], Any]

WAYS: dict[str, Way] = {
    "eager": lambda f: f,
    "tj.jit": tj.jit,
    "below the hook": lambda f: tj.jit(f, frontend="dynamo_hook"),
    "backend": lambda f: torch.compile(f, backend="tj"),
}


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    torch.compiler.reset()
    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gc.enable()


def kept(references: References) -> list[str]:
    return [name for name, reference in references.items() if reference() is not None]


# --------------------------------------------------------------------------- arguments, results


class Planted(Exception):
    pass


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        raise Planted


def works(x: torch.Tensor) -> Any:
    a = (x * 2).exp()
    return a.sin(), a.cos()


def raises(x: torch.Tensor) -> Any:
    y = x * 2
    raise Planted(y.shape)


def an_operation_raises(x: torch.Tensor) -> Any:
    return (x * 2).view(7, 7), x


def an_operation_raises_when_it_runs(x: torch.Tensor) -> Any:
    y = (x * 2).sin()
    return torch.linalg.cholesky(y @ y.t() - 100), x


def its_backward_raises(x: torch.Tensor) -> Any:
    y = Fails.apply(x.sin())
    return y, y.cos()


def nothing(a: torch.Tensor, x: torch.Tensor) -> None:
    """The graph is dropped."""


def partial(a: torch.Tensor, x: torch.Tensor) -> None:
    a.sum().backward()


def retained(a: torch.Tensor, x: torch.Tensor) -> None:
    a.sum().backward(retain_graph=True)


def twice(a: torch.Tensor, x: torch.Tensor) -> None:
    a.sum().backward()
    a.sum().backward()


def of_a_gradient(a: torch.Tensor, x: torch.Tensor) -> None:
    (g,) = torch.autograd.grad(a.sum(), x, create_graph=True)
    torch.autograd.grad(g.sum(), x)


DYNAMOS = [
    ("backend", an_operation_raises),
    ("backend", its_backward_raises),
    ("below the hook", raises),
    ("below the hook", its_backward_raises),
]
"""Programs whose arguments Dynamo's own errors keep below its hook, until a collection."""


@pytest.mark.parametrize(
    **pairwise(
        way=WAYS,
        after=[nothing, partial, retained, twice, of_a_gradient],
        program=[
            works,
            raises,
            an_operation_raises,
            an_operation_raises_when_it_runs,
            its_backward_raises,
        ],
    )
)
def test_arguments_and_results(
    program: Callable[..., Any], after: Callable[..., None], way: str
) -> None:
    if (way, program) in DYNAMOS:
        return
    run = WAYS[way](program)

    def call() -> References:
        leaf = torch.arange(9.0).reshape(3, 3).requires_grad_()
        x = leaf * 1
        references = {"leaf": weakref.ref(leaf), "argument": weakref.ref(x)}
        try:
            a, b = run(x)
            references |= {"first": weakref.ref(a), "second": weakref.ref(b)}
            after(a, x)
        except (Planted, RuntimeError):
            pass
        return references

    for turn in ("compiling", "again"):
        assert kept(call()) == [], turn


def test_arguments_of_a_program_that_tj_fails_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(trace: Any) -> Any:
        raise Planted

    monkeypatch.setattr("tj_core.compile.pipeline.dce", fails)
    for strict in (False, True):
        run = tj.jit(works, strict=strict)

        def call(run: Any = run) -> References:
            x = torch.ones(3, requires_grad=True)
            with contextlib.suppress(Planted):
                run(x)
            return {"x": weakref.ref(x)}

        assert kept(call()) == []


# --------------------------------------------------------------------------- what owns a program


def of_a_module(way: Way) -> References:
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    run = way(module)
    for _ in range(2):
        run(torch.ones(2, 3)).sum().backward()
    weight = module[0].weight
    assert weight.grad is not None
    return {
        "module": weakref.ref(module),
        "weight": weakref.ref(weight),
        "gradient": weakref.ref(weight.grad),
        "compiled": weakref.ref(run),
    }


def of_a_closure(way: Way) -> References:
    constant, module = torch.ones(3), nn.Linear(3, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (module(x) * constant).sum()

    run = way(f)
    for _ in range(2):
        run(torch.ones(3, requires_grad=True)).backward()
    return {
        "constant": weakref.ref(constant),
        "module": weakref.ref(module),
        "function": weakref.ref(f),
        "compiled": weakref.ref(run),
    }


def of_a_closure_that_breaks(way: Way) -> References:
    module = nn.Linear(3, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = module(x)
        torch._dynamo.graph_break()
        return y.sum()

    run = way(f)
    for _ in range(2):
        run(torch.ones(3, requires_grad=True)).backward()
    return {"module": weakref.ref(module), "compiled": weakref.ref(run)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [of_a_module, of_a_closure, of_a_closure_that_breaks])
def test_what_owns_a_program(make: Callable[[Way], References], way: str) -> None:
    assert kept(make(WAYS[way])) == []


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimizer_whose_step_is_jitted(cls: type[torch.optim.Optimizer]) -> None:
    """Dynamo itself makes cycles of what it looks at here: a collection may be needed."""
    module = nn.Linear(3, 3)
    more = {"momentum": 0.9} if cls is torch.optim.SGD else {}
    optimizer = cls(module.parameters(), lr=0.1, **more)  # type: ignore[call-arg]
    step = tj.jit(optimizer.step)
    for _ in range(3):
        module(torch.ones(2, 3)).sum().backward()
        step()
    state = [v for of in optimizer.state.values() for v in of.values()]
    tensors = [v for v in state if isinstance(v, torch.Tensor)]
    references: References = {f"state {i}": weakref.ref(v) for i, v in enumerate(tensors)}
    references |= {"optimizer": weakref.ref(optimizer), "step": weakref.ref(step)}
    del module, optimizer, step, state, tensors
    gc.collect()
    assert kept(references) == []
