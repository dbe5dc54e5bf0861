"""Nothing of tj is captured by Dynamo, wherever PyTorch's hook is on while tj runs or compiles."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tj_core as tj
import torch
from torch._dynamo import convert_frame, trace_rules

# Dynamo reads .grad of what it looks at, and PyTorch warns of that; most programs here break.
pytestmark = [
    pytest.mark.sampled(16),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore::tj_core.TjWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),  # Dynamo does
]

PACKAGES = ("tj_core", "tj_torch", "tj_autograd")
PROGRAMS = (
    *("conformance", "demo.py", "dispatch/module.py", "dispatch/autocast.py"),
    *("layer_outputs.py", "capture/checked_programs.py"),
)
"""Files of the packages that are programs, which Dynamo may
capture; those of ``dispatch`` call jitted ones.
"""


def files() -> Iterator[tuple[Path, bool]]:
    """Yield every file of tj's packages, and True if it is a program."""
    for package in PACKAGES:
        folder = Path(importlib.import_module(package).__path__[0])
        for path in folder.rglob("*.py"):
            yield path, path.relative_to(folder).as_posix().startswith(PROGRAMS)


def test_dynamo_passes_over_each_file() -> None:
    tj.jit(torch.sin)  # the session's plugins register what they are made of
    wrong = [
        path for path, program in files() if trace_rules.check_file(str(path)).skipped == program
    ]
    assert wrong == []


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the files whose frames Dynamo captures; one of tj's is an error at once."""
    found: list[str] = []
    original = convert_frame._compile

    def compile_frame(code: Any, *rest: Any, **more: Any) -> Any:
        file = code.co_filename
        found.append(file)
        assert not file.startswith("<tj "), f"captured: {code}"
        assert (Path(file), False) not in every, f"captured: {code}"
        return original(code, *rest, **more)

    every = set(files())
    monkeypatch.setattr(convert_frame, "_compile", compile_frame)
    torch.compiler.reset()
    return found


def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x * 2).sin(), (x * x).cos()


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return g * 2 + x * 0


def one_unused(x: torch.Tensor) -> Any:
    a, b = two(x)
    torch._dynamo.graph_break()
    a.sum().backward()
    return x.grad, b


def each_in_turn(x: torch.Tensor) -> Any:
    a, b = two(x)
    torch._dynamo.graph_break()
    (first,) = torch.autograd.grad(a.sum(), x, retain_graph=True)
    (second,) = torch.autograd.grad(b.sum(), x)
    return first, second


def laid_out_otherwise(x: torch.Tensor) -> Any:
    a, _ = two(x)
    torch._dynamo.graph_break()
    (first,) = torch.autograd.grad(a, x, torch.ones(3, 2).t())
    return first


def gradient_of_a_gradient(x: torch.Tensor) -> Any:
    a, _ = two(x)
    torch._dynamo.graph_break()
    (first,) = torch.autograd.grad(a.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return first, second


def own_backward(x: torch.Tensor) -> Any:
    y = Twice.apply(x.sin())
    torch._dynamo.graph_break()
    y.sum().backward()
    return x.grad


def hooked(x: torch.Tensor) -> Any:
    a, _ = two(x)
    a.register_hook(lambda g: g * 3)
    torch._dynamo.graph_break()
    a.sum().backward()
    return x.grad


def jitted_inside(x: torch.Tensor) -> Any:
    a, b = tj.jit(two)(x)
    a.sum().backward()
    return x.grad, b


WAYS: dict[str, Callable[[Any], Any]] = {
    "tj.jit": tj.jit,
    "below the hook": lambda f: tj.jit(f, frontend="dynamo_hook"),
    "backend tj": lambda f: torch.compile(f, backend="tj"),
    "backend eager around": lambda f: torch.compile(f, backend="eager"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "program",
    [
        one_unused,
        each_in_turn,
        laid_out_otherwise,
        gradient_of_a_gradient,
        own_backward,
        hooked,
        jitted_inside,
    ],
)
def test_what_runs_below_the_hook_is_the_users(
    program: Callable[..., Any], way: str, captured: list[str]
) -> None:
    run = WAYS[way](program)
    for _ in range(2):
        mine, theirs = (torch.arange(6.0).reshape(2, 3).requires_grad_() for _ in range(2))
        got, expected = run(mine), program(theirs)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert __file__ in captured
