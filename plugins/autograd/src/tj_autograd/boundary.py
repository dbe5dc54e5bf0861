"""The boundary to PyTorch's autograd: a forward and a backward program as one differentiable call.

Only the tensors that need a gradient pass through ``autograd.Function.apply``; everything else goes
in and comes out beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.printer import value_text
from tj_core.proxy import Proxy, TensorProxy

from tj_autograd.joint import Layout
from tj_autograd.split import Halves

__all__ = ["Pullback", "Pullbacks", "differentiable"]

Program = Callable[[list[Any]], Any]
"""A boxed program: takes a list, and empties it."""


@dataclass(frozen=True, slots=True)
class Pullback:
    """A backward program: which saved values it takes, and which tangents laid out how.

    ``tangents`` has a place for each root; None where the program takes none.
    """

    program: Program
    saved: tuple[int, ...]
    tangents: tuple[TensorProxy | None, ...]


@dataclass
class Pullbacks:
    """The backward programs of one forward, by the strides of the tangents that exist."""

    make: Callable[[Layout], Pullback]
    known: dict[Layout, Pullback] = field(default_factory=dict)

    def __getitem__(self, layout: Layout) -> Pullback:
        """The program for tangents of ``layout``, made when first needed."""
        found = self.known.get(layout)
        if found is None:
            found = self.known[layout] = self.make(layout)
        return found


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all calls of one program have in common."""

    forward: Program
    pullbacks: Pullbacks
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    order: tuple[int, ...]
    wrt: tuple[int, ...]


class _Call:
    """What does not cross the boundary in one call."""

    __slots__ = ("inputs", "numbers", "plan", "rest")

    def __init__(self, plan: _Plan, inputs: list[Any]) -> None:
        self.plan = plan
        self.inputs = inputs
        self.numbers: tuple[Any, ...] = ()
        self.rest: tuple[Any, ...] = ()


class Compiled(torch.autograd.Function):
    """One call of a compiled program as PyTorch's autograd sees it: a single node."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *differentiable: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The roots; the rest is left in ``call``."""
        plan = call.plan
        roots, rest, saved = plan.forward(call.inputs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*[saved[i] for i in plan.tensors])
        ctx.plan = plan
        ctx.numbers = tuple([saved[i] for i in plan.numbers])
        call.rest = rest
        return roots  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the differentiable inputs.

        :raises RuntimeError: if the gradient is to be differentiated again.
        """
        if torch.is_grad_enabled():
            raise RuntimeError(
                "tj does not differentiate a backward yet: call .backward() or torch.autograd.grad "
                "without create_graph=True, or the original function"
            )
        plan: _Plan = ctx.plan
        layout = tuple([None if t is None else t.stride() for t in tangents])
        pullback = plan.pullbacks[layout]
        values = [*ctx.saved_tensors, *ctx.numbers]
        order = plan.order
        box = [values[order[i]] for i in pullback.saved]
        del values
        for tangent, expected in zip(tangents, pullback.tangents, strict=True):
            if expected is not None:
                box.append(_zeros(expected) if tangent is None else _laid_out(tangent, expected))
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # type: ignore[attr-defined]
            ctx.maybe_clear_saved_tensors()
        del tangents
        gradients = pullback.program(box)
        return (None, *[gradients[i] for i in plan.wrt])


def _laid_out(tangent: torch.Tensor, expected: TensorProxy) -> torch.Tensor:
    """``tangent`` with the strides that the backward was compiled for."""
    if tangent.stride() == expected.strides:
        return tangent
    made = torch.empty_strided(
        tangent.shape,
        expected.strides,  # type: ignore[arg-type]
        dtype=tangent.dtype,
        device=tangent.device,
    )
    return made.copy_(tangent)


def _zeros(expected: TensorProxy) -> torch.Tensor:
    from tj_torch.dialect.convert import device_to_torch, dtype_to_torch

    return torch.empty_strided(
        expected.shape,  # type: ignore[arg-type]
        expected.strides,  # type: ignore[arg-type]
        dtype=dtype_to_torch(expected.dtype),
        device=device_to_torch(expected.device),
    ).zero_()


def differentiable(halves: Halves, forward: Program, pullbacks: Pullbacks) -> Callable[..., Any]:
    """The two halves as a function of the inputs that PyTorch's autograd can differentiate."""
    gradients = halves.backward.outputs
    wrt = tuple(i for i, g in enumerate(gradients) if g is not None)
    tensors = [i for i, p in enumerate(halves.saved) if isinstance(p, TensorProxy)]
    numbers = [i for i, p in enumerate(halves.saved) if not isinstance(p, TensorProxy)]
    position = {saved: i for i, saved in enumerate((*tensors, *numbers))}
    plan = _Plan(
        forward,
        pullbacks,
        tuple(tensors),
        tuple(numbers),
        tuple(position[i] for i in range(len(halves.saved))),
        wrt,
    )
    return _generated(halves, plan, [halves.forward.inputs[i] for i in wrt])


def _generated(halves: Halves, plan: _Plan, wrt: Sequence[Proxy]) -> Callable[..., Any]:
    """Straight-line code from the inputs to the outputs."""
    scope: dict[str, Any] = {"_apply": Compiled.apply, "_Call": _Call, "_plan": plan}

    def constant(c: Any) -> str:
        name = f"_constant_{len(scope)}"
        scope[name] = c.value
        return name

    inputs = ", ".join(p.name for p in halves.forward.inputs)
    lines = [
        f"def computation({inputs}):",
        f"    _call = _Call(_plan, [{inputs}])",
        f"    {_names(halves.roots)} = _apply(_call, {', '.join(p.name for p in wrt)})",
    ]
    if halves.rest:
        lines.append(f"    {_names(halves.rest)} = _call.rest")
    lines.append(f"    return {value_text(halves.outputs, str, constant)}")
    exec(compile("\n".join(lines), "<tj boundary>", "exec"), scope)
    function: Callable[..., Any] = scope.pop("computation")
    return function


def _names(proxies: Sequence[Proxy]) -> str:
    return "".join(f"{p.name}, " for p in proxies)
