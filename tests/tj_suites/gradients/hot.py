"""Operations that take most of training's time: exact gradients, and no more saved than needed.

Most have no rule of tj-autograd's own, because the derived one is as good: it runs eager's
formulas, and saves no more. Files of tests check that for each, with all of its options.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import tj_core as tj
import torch
from torch.profiler import ProfilerActivity, profile

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A call of tensors of these shapes; ``more`` runs cheap operations that eager does not."""

    fn: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    more: bool = False


def case(fn: Callable[..., torch.Tensor], *shapes: tuple[int, ...], more: bool = False) -> Case:
    return Case(fn, shapes, more)


I = torch.tensor([0, 2, 1, 2, 4])  # noqa: E741 - indices of 5 rows
MASK = torch.tensor([[True, False, True], [True, True, True]])
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.0])


def arguments(c: Case, dtype: torch.dtype) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in c.shapes]
    return tuple(t.to(dtype).requires_grad_() for t in made)


def compiled(c: Case) -> Any:
    return tj.jit(lambda *args: c.fn(*args))


def step(fn: Callable[..., torch.Tensor], args: Tensors) -> list[torch.Tensor]:
    """Result, gradients for a tangent that is no constant, random numbers drawn."""
    torch.manual_seed(0)
    out = fn(*args)
    drawn = torch.rand(2)
    tangent = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return [out, *torch.autograd.grad(out, args, tangent), drawn]


# -------------------------------------------------------------------------------------- checks


def checks_of(cases: Mapping[str, Case], without: Container[str] = ()) -> tuple[Any, Any, Any]:
    """Tests of gradients, of bits and of costs, for each of ``cases``.

    Those ``without`` have gradients that finite differences cannot check; they are compared with
    eager's.
    """

    @pytest.mark.parametrize("name", cases)
    def differences(name: str) -> None:
        check_differences(cases[name], differentiable=name not in without, single="float32" in name)

    @pytest.mark.sampled(16)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("name", cases)
    def bits(name: str, dtype: torch.dtype) -> None:
        check_bits(cases[name], dtype)

    @pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # PyTorch 2.10 says so
    @pytest.mark.parametrize("name", cases)
    def costs(name: str) -> None:
        check_costs(cases[name])

    return differences, bits, costs


def check_differences(c: Case, *, differentiable: bool = True, single: bool = False) -> None:
    """Compare gradients with finite differences, if these can check them; none is declined.

    :param single: the operation computes in float32 whatever its arguments are.
    """
    run = compiled(c)

    def seeded(*args: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        found: torch.Tensor = run(*args)
        return found

    args = arguments(c, torch.float64)
    if single:
        assert torch.autograd.gradcheck(seeded, args, eps=1e-2, atol=1e-2, fast_mode=True)
    elif differentiable:
        assert torch.autograd.gradcheck(seeded, args, fast_mode=True)
    else:
        seeded(*args)
    assert tj.explain(run).declined == ()
    assert tj.explain(run).gradients


def check_bits(c: Case, dtype: torch.dtype) -> None:
    """Results, gradients and random numbers are eager's to the bit."""
    expected = step(c.fn, arguments(c, dtype))
    for mine, theirs in zip(step(compiled(c), arguments(c, dtype)), expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


def check_costs(c: Case) -> None:
    """No more is saved than in eager, and no more operators run if the case says so."""
    args = arguments(c, torch.float32)
    run = compiled(c)
    step(run, args)
    assert saved_bytes(run, args) <= saved_bytes(c.fn, args)
    if not c.more:
        assert operators(run, args) <= operators(c.fn, args)


def saved_bytes(fn: Callable[..., torch.Tensor], args: Tensors) -> int:
    """Bytes kept for the backward beside the arguments and the result."""
    sizes: dict[int, int] = {}
    alive = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        alive.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = fn(*args)
    known = {t.untyped_storage().data_ptr() for t in (*args, out, I, MASK, WEIGHT)}
    return sum(size for where, size in sizes.items() if where not in known)


FREE = (
    "view",
    "expand",
    "transpose",
    "as_strided",
    "squeeze",
    "permute",
    "alias",
    "detach",
    "empty",
)
"""In the names of operators that make views or allocate memory."""


def operators(fn: Callable[..., torch.Tensor], args: Tensors) -> int:
    """Number of operators that compute something in a forward and its backward."""
    out = fn(*args)
    tangent = torch.ones_like(out)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        torch.autograd.grad(fn(*args), args, tangent)
    names = [
        e.name for e in recorded.events() if e.name.startswith("aten::") and not e.cpu_children
    ]
    return sum(not any(free in name for free in FREE) for name in names)
