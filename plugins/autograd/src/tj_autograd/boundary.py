"""The boundary to PyTorch's autograd: a forward and a backward program as one differentiable call.

Only the tensors that need a gradient pass through ``autograd.Function.apply``; everything else goes
in and comes out beside it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.printer import value_text
from tj_core.proxy import Proxy, TensorProxy
from tj_torch.dialect.convert import device_to_torch, dtype_to_torch
from tj_torch.dialect.sizes import is_sized

from tj_autograd.joint import USUAL, Layout
from tj_autograd.replay import advance, states
from tj_autograd.split import Halves
from tj_autograd.variants import Boxed, Variants

__all__ = ["Compiled", "differentiable", "usual_layout"]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all calls of one program have in common.

    ``tensors`` and ``numbers`` are the saved values that are tensors and those that are not;
    ``order`` says where each saved value is among the ones, then the others. ``wrt`` are the inputs
    with a gradient. ``inputs`` says which saved tensor an input is, None for one that is not saved;
    ``sized`` says which roots have sizes
    that are symbols, ``reach`` which of their tangents each gradient depends on. ``unread`` are
    inputs that the program may be run again with other values of; ``devices`` those whose
    generators it draws from.
    """

    forward: Boxed
    variants: Variants
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    order: tuple[int, ...]
    wrt: tuple[int, ...]
    inputs: tuple[int | None, ...]
    sized: tuple[bool, ...]
    reach: tuple[frozenset[int], ...]
    unread: frozenset[int]
    devices: tuple[str, ...]

    def layout(self, tangents: Sequence[torch.Tensor | None]) -> Layout:
        """How ``tangents`` are laid out; with symbols in their sizes they are made as usual."""
        pairs = zip(tangents, self.sized, strict=True)
        return tuple([None if t is None else USUAL if sized else t.stride() for t, sized in pairs])


class _Call:
    """What does not cross the boundary in one call.

    ``copies`` are inputs as they were, by position, for those that the program writes.
    """

    __slots__ = ("copies", "inputs", "numbers", "plan", "rest")

    def __init__(self, plan: _Plan, inputs: list[Any], copies: dict[int, Any]) -> None:
        self.plan = plan
        self.inputs = inputs
        self.copies = copies
        self.numbers: tuple[Any, ...] = ()
        self.rest: tuple[Any, ...] = ()


class Compiled(torch.autograd.Function):
    """One call of a compiled program as PyTorch's autograd sees it: a single node."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *differentiable: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The roots; the rest is left in ``call``."""
        plan = call.plan
        ctx.inputs = [
            _weakly(x) if i is None else None for i, x in zip(plan.inputs, call.inputs, strict=True)
        ]
        ctx.copies = call.copies
        ctx.states = states(plan.devices)
        roots, rest, saved = plan.forward(call.inputs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*[saved[i] for i in plan.tensors])
        ctx.plan = plan
        ctx.numbers = tuple([saved[i] for i in plan.numbers])
        ctx.shapes = [root.shape for root in roots]
        call.rest = rest
        return roots  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the differentiable inputs."""
        plan: _Plan = ctx.plan
        if all(tangent is None for tangent in tangents):
            return (None,) * (len(plan.wrt) + 1)
        if torch.is_grad_enabled():
            return (None, *_differentiable_gradients(ctx, plan, tangents))
        pullback = plan.variants[plan.layout(tangents)]
        # Where nothing was saved there is nothing to be freed: the graph can be used again.
        values = [*(ctx.saved_tensors if plan.tensors else ()), *ctx.numbers]
        order = plan.order
        box = [values[order[i]] for i in pullback.saved]
        del values
        for tangent, expected, shape in zip(tangents, pullback.tangents, ctx.shapes, strict=True):
            if expected is not None:
                box.append(
                    _zeros(expected, shape) if tangent is None else _laid_out(tangent, expected)
                )
        absent = {i for i, tangent in enumerate(tangents) if tangent is None}
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # type: ignore[attr-defined]
            ctx.maybe_clear_saved_tensors()
        del tangents, tangent
        gradients = pullback.program(box)
        pairs = zip(plan.wrt, plan.reach, strict=True)
        return (None, *[None if reach <= absent else gradients[i] for i, reach in pairs])


def _weakly(value: Any) -> Any:
    """A reference to a tensor that does not keep it alive, and its version; else the value."""
    return (weakref.ref(value), value._version) if isinstance(value, torch.Tensor) else value


def _differentiable_gradients(
    ctx: Any, plan: _Plan, tangents: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """The gradients as functions of inputs and tangents, by running the program once more.

    :raises RuntimeError: if that would not be the same program run: an input is gone, or somebody
        else has written it.
    """
    inputs = _inputs(ctx, plan)
    now = states(plan.devices)
    advance(plan.devices, ctx.states)
    try:
        roots = plan.variants.again(*inputs)
    finally:
        advance(plan.devices, now)
    present = [(r, t) for r, t in zip(roots, tangents, strict=True) if t is not None]
    return torch.autograd.grad(
        [r for r, _ in present],
        [inputs[i] for i in plan.wrt],
        [t for _, t in present],
        create_graph=True,
        allow_unused=True,
    )


def _inputs(ctx: Any, plan: _Plan) -> list[Any]:
    """The inputs as they were when the program ran."""
    saved = ctx.saved_tensors
    found = []
    for i, (place, kept) in enumerate(zip(plan.inputs, ctx.inputs, strict=True)):
        if place is not None:
            found.append(saved[place])
        elif i in ctx.copies:
            found.append(ctx.copies[i])
        else:
            found.append(_strongly(kept, i in plan.unread))
    return found


def _strongly(kept: Any, unread: bool) -> Any:
    if not isinstance(kept, tuple):
        return kept
    reference, version = kept
    tensor = reference()
    if tensor is None:
        raise RuntimeError(
            "tj cannot differentiate this gradient: an input of the compiled function has been "
            "freed; keep it alive until the backward with create_graph=True is done"
        )
    if tensor._version != version and not unread:
        raise RuntimeError(
            "tj cannot differentiate this gradient: an input of the compiled function has been "
            f"modified by an inplace operation (version {tensor._version}, expected {version})"
        )
    return tensor


def _laid_out(tangent: torch.Tensor, expected: TensorProxy) -> torch.Tensor:
    """``tangent`` with the strides that the backward was compiled for."""
    strides = _strides(expected, tangent.shape)
    if tangent.stride() == strides:
        return tangent
    made = torch.empty_strided(tangent.shape, strides, dtype=tangent.dtype, device=tangent.device)
    return made.copy_(tangent)


def _zeros(expected: TensorProxy, shape: torch.Size) -> torch.Tensor:
    return torch.empty_strided(
        shape,
        _strides(expected, shape),
        dtype=dtype_to_torch(expected.dtype),
        device=device_to_torch(expected.device),
    ).zero_()


def _strides(expected: TensorProxy, shape: torch.Size) -> tuple[int, ...]:
    """The strides that ``expected`` has where its shape is ``shape``; dense if they are symbols."""
    if not is_sized(expected):
        return expected.strides  # type: ignore[return-value]
    hints = [t if isinstance(t, int) else t.hint or 1 for t in expected.strides]
    found = [0] * len(shape)
    step = 1
    for i in sorted(reversed(range(len(shape))), key=lambda i: hints[i]):
        found[i] = step
        step *= max(shape[i], 1)
    return tuple(found)


def usual_layout(tangent: Proxy) -> Any:
    """The layout of a tangent that the first backward program is made for."""
    assert isinstance(tangent, TensorProxy)
    return USUAL if is_sized(tangent) else tangent.strides


def differentiable(halves: Halves, forward: Boxed, variants: Variants) -> Callable[..., Any]:
    """The two halves as a function of the inputs that PyTorch's autograd can differentiate."""
    gradients = halves.backward.outputs
    wrt = tuple(i for i, g in enumerate(gradients) if g is not None)
    # Without any gradient the results require one all the same.
    wrt = wrt or tuple(i for i, p in enumerate(variants.functional.inputs) if _differentiable(p))
    tensors = [i for i, p in enumerate(halves.saved) if isinstance(p, TensorProxy)]
    numbers = [i for i, p in enumerate(halves.saved) if not isinstance(p, TensorProxy)]
    position = {saved: i for i, saved in enumerate((*tensors, *numbers))}
    names = [halves.saved[i].name for i in tensors]
    inputs = halves.forward.inputs
    once_more = variants.once_more
    plan = _Plan(
        forward,
        variants,
        tuple(tensors),
        tuple(numbers),
        tuple(position[i] for i in range(len(halves.saved))),
        wrt,
        tuple(names.index(p.name) if p.name in names else None for p in inputs),
        tuple(map(is_sized, halves.tangents)),
        _reach(halves, wrt),
        once_more.unread,
        once_more.devices,
    )
    return _generated(halves, plan, [inputs[i] for i in wrt], once_more.copied)


def _differentiable(p: Proxy) -> bool:
    return isinstance(p, TensorProxy) and p.requires_grad


def _reach(halves: Halves, wrt: Sequence[int]) -> tuple[frozenset[int], ...]:
    """For each gradient in ``wrt``, the positions of the tangents that it depends on."""
    known = {p.name: frozenset((i,)) for i, p in enumerate(halves.tangents)}
    nothing: frozenset[int] = frozenset()
    for call in halves.backward.calls:
        read = nothing.union(*(known.get(p.name, nothing) for p in call.flat_args))
        known.update((p.name, read) for p in call.flat_outs)
    gradients = [halves.backward.outputs[i] for i in wrt]
    return tuple(nothing if g is None else known.get(g.name, nothing) for g in gradients)


def _generated(
    halves: Halves, plan: _Plan, wrt: Sequence[Proxy], copied: Sequence[int]
) -> Callable[..., Any]:
    """Straight-line code from the inputs to the outputs."""
    scope: dict[str, Any] = {"_apply": Compiled.apply, "_Call": _Call, "_plan": plan}

    def constant(c: Any) -> str:
        name = f"_constant_{len(scope)}"
        scope[name] = c.value
        return name

    inputs = ", ".join(p.name for p in halves.forward.inputs)
    # Copies have the history that the inputs have now.
    copies = ", ".join(f"{i}: {halves.forward.inputs[i].name}.clone()" for i in copied)
    lines = [
        f"def computation({inputs}):",
        f"    _call = _Call(_plan, [{inputs}], {{{copies}}})",
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
