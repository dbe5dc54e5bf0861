"""A backward that has run is run again without questions, where nothing differs that matters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_autograd.run import boundary
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Outs = tuple[torch.Tensor, torch.Tensor]


def program(x: torch.Tensor, w: torch.Tensor) -> Outs:
    h = torch.tanh(x @ w)
    return h, h.exp() @ w


def inputs() -> Outs:
    torch.manual_seed(0)
    return torch.randn(4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)


def usual(fn: Callable[..., Outs]) -> Any:
    x, w = inputs()
    h, y = fn(x, w)
    torch.autograd.backward([h, y], [torch.ones(4, 3), torch.ones(4, 3)])
    return x.grad, w.grad


class Functions(TorchFunctionMode):
    """A mode that changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def negative() -> torch.Tensor:
    return torch.complex(torch.ones(4, 3), torch.ones(4, 3)).conj().imag


TANGENTS: dict[str, Callable[[], list[torch.Tensor | None]]] = {
    "plain": lambda: [torch.ones(4, 3), torch.full((4, 3), 2.0)],
    "expanded": lambda: [torch.ones(()).expand(4, 3), torch.ones(4, 3)],
    "transposed": lambda: [torch.ones(3, 4).t(), torch.ones(4, 3)],
    "negative": lambda: [negative(), torch.ones(4, 3)],
    "one": lambda: [torch.ones(4, 3), None],
    "zeros": lambda: [torch._efficientzerotensor((4, 3)), torch.ones(4, 3)],
}

AROUND: dict[str, Callable[[], Any]] = {
    "nothing": contextlib.nullcontext,
    "function mode": Functions,
    "dispatch mode": Operators,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "device": lambda: torch.device("cpu"),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("tangents", TANGENTS)
def test_what_differs_is_as_in_eager(tangents: str, around: str) -> None:
    jitted = tj.jit(program)
    found = []
    for fn in (program, jitted):
        for _ in range(3):
            usual(fn)
        x, w = inputs()
        h, y = fn(x, w)
        given = [(r, t) for r, t in zip((h, y), TANGENTS[tangents](), strict=True) if t is not None]
        with AROUND[around]():
            torch.autograd.backward([r for r, _ in given], [t for _, t in given])
        found.append((x.grad, w.grad))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()


@pytest.mark.parametrize("create_graph", [False, True])
def test_graphs_that_are_kept_and_freed(create_graph: bool) -> None:
    jitted = tj.jit(program)
    found = []
    for fn in (program, jitted):
        for _ in range(2):
            usual(fn)
        x, w = inputs()
        y = fn(x, w)[1]
        first = torch.autograd.grad(y, [x], torch.ones(4, 3), create_graph=create_graph)
        if create_graph:
            first += torch.autograd.grad(first[0].sum(), [w], retain_graph=True)
            y.sum().backward()
            first += (x.grad, w.grad)  # type: ignore[operator]
        with pytest.raises(RuntimeError, match="second time"):
            y.backward(torch.ones(4, 3))
        found.append(first)
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_no_question_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = tj.jit(program)
    expected = usual(program)
    usual(jitted)
    for name in ("is_unlike", "laid_out", "has_memory", "ambient_autocast"):
        monkeypatch.setattr(boundary, name, None)
    for mine, theirs in zip(usual(jitted), expected, strict=True):
        assert torch.equal(mine, theirs)


def test_a_write_to_a_saved_tensor_is_found() -> None:
    jitted = tj.jit(program)
    for fn in (program, jitted):
        usual(fn)
        x, w = inputs()
        y = fn(x, w)[1]
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_tensor_of_a_level_that_has_been_left() -> None:
    """Its gradient is that of the tensor inside, as in eager."""
    left: list[torch.Tensor] = []

    def loss(x: torch.Tensor) -> torch.Tensor:
        left.append(x)
        return (x * x).sum()

    found = []
    for fn in (program, tj.jit(program)):
        x, w = inputs()
        torch.func.grad(loss)(x)
        h, y = fn(left.pop(), w)
        (h.sum() + y.sum()).backward()
        found.append((x.grad, w.grad))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)
