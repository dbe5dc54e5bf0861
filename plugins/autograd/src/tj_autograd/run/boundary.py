"""The boundary to PyTorch's autograd: a forward and a backward program as one differentiable call.

Only the tensors that need a gradient pass through ``autograd.Function.apply``; everything else goes
in and comes out beside it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tj_torch.internal import (
    Form,
    ambient_autocast,
    autocast_as_in,
    backward_keeps_graph,
    dispatch_modes,
    engine_gradients,
    form_of,
    forward_level,
    function_mode_is_on,
    outside_levels,
    saved_tensors_are_hooked,
    without_function_modes,
    without_modes,
)

from tj_autograd.joint.replay import advance, states
from tj_autograd.run.crossing import (
    as_in_eager,
    has_memory,
    is_unlike,
    laid_out,
    unpacked,
    zeros,
)
from tj_autograd.run.holders import Holders, Versions, check_versions
from tj_autograd.run.saved_inputs import FREED, Sources
from tj_autograd.run.tangents import compact, in_this_call
from tj_autograd.run.usual import forms, is_alone

if TYPE_CHECKING:
    from tj_autograd.joint.build import Layout
    from tj_autograd.run.shares import Boxed
    from tj_autograd.run.usual import Forms
    from tj_autograd.run.variants import Key, Pullback, Variants

__all__ = ["Call", "Compiled", "Plan", "run_by_nodes"]


DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Facts about a segment that its calls share.

    ``forward`` is the program; only the first segment has it. ``outputs`` are the indices of the
    roots that the segment returns, None for all. ``tensors`` and ``numbers`` are indices of the
    saved values that are tensors, and of the others; ``order`` gives, for each saved value that the
    backward takes, its position in tensors followed by numbers. ``wrt`` are the keys of its
    gradients, ``places`` the inputs that these belong to. ``sources`` provides the inputs when the
    segment runs again, ``devices`` are those whose generators the program draws from. ``layouts``
    computes the layout of each tangent. ``frees`` is true if the backward frees the graph even
    though the call keeps no tensor of its own. ``live`` are pairs (saved tensor, input) of saved
    tensors that autograd made; ``given`` are pairs (saved tensor, gradient) of saved tensors whose
    gradient the segment returns. ``asks`` is true if the segment has users' backwards, which run
    where no tangent arrives. ``holders`` are the tensor subclasses that hold saved tensors.
    ``shapes`` are those of the outputs, None where a call decides. ``usual`` caches backward
    programs by the `forms` of tangents that they take as they are.
    """

    forward: Boxed | None
    variants: Variants
    outputs: tuple[int, ...] | None
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    order: tuple[int, ...]
    wrt: tuple[Key, ...]
    places: tuple[int, ...]
    sources: Sources
    layouts: tuple[Callable[[torch.Tensor], Any], ...]
    devices: tuple[str, ...]
    frees: bool
    live: tuple[tuple[int, int], ...]
    given: tuple[tuple[int, int], ...]
    asks: bool
    holders: Holders
    shapes: tuple[torch.Size, ...] | None
    usual: dict[Forms | None, Pullback] = field(default_factory=dict)

    def layout(self, tangents: Sequence[torch.Tensor | None]) -> Layout:
        """Layout of ``tangents``, None for each that does not exist."""
        pairs = zip(tangents, self.layouts, strict=True)
        return tuple([None if t is None else layout(t) for t, layout in pairs])


class Call:
    """State of one call that does not pass through autograd.

    ``inputs`` are the program's, the first ``given``, then the values that segments have returned
    so far. ``copies`` are the original values, by position, of inputs that the program writes;
    ``versions`` those of tensor subclasses that hold saved tensors.
    """

    __slots__ = ("copies", "given", "inputs", "rest", "results", "states", "versions")

    def __init__(self, inputs: list[Any], copies: dict[int, Any]) -> None:
        self.inputs = inputs
        self.given = len(inputs)
        self.copies = copies
        self.rest: tuple[Any, ...] = ()
        self.results: tuple[Any, Any] = ((), ())
        self.versions: Versions = ()

    def run(self, plan: Plan) -> tuple[Any, Any]:
        """Return the roots and the saved values; the first segment runs the program."""
        if plan.forward is None:
            return self.results
        self.states = states(plan.devices)
        inputs = self.inputs if plan.outputs is None else self.inputs[: self.given]
        held = plan.holders
        given = [*held.among(held.inputs, inputs)] if held.inputs else []
        roots, self.rest, saved = plan.forward(inputs)
        self.versions = [*given, *held.among(held.roots, roots)] if held.roots else given
        if plan.outputs is not None:
            self.results = roots, saved
        return roots, saved


class Compiled(torch.autograd.Function):
    """One call of a compiled program in PyTorch's autograd: a node for each segment."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, call: Call, *differentiable: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the segment's outputs; other results of the program are left in ``call``."""
        inputs = ctx.inputs = plan.sources.save(call.inputs, call.copies)
        roots, saved = call.run(plan)
        if plan.outputs is not None:
            roots = tuple([roots[i] for i in plan.outputs])
        ctx.states, ctx.versions = call.states, call.versions
        # Else autograd fills in zeros: which tangents are missing chooses the backward program.
        ctx.set_materialize_grads(False)
        tensors = [saved[i] for i in plan.tensors]
        # The program runs below autograd: its own value of such a view has no history.
        for i, place in plan.live:
            tensors[i] = call.inputs[place]
        ctx.hooked = bool(tensors or inputs.tensors) and saved_tensors_are_hooked()
        if inputs.tensors and ctx.hooked:
            tensors += inputs.packed()
        ctx.save_for_backward(*tensors)
        ctx.plan = plan
        ctx.asked = None
        ctx.numbers = tuple([saved[i] for i in plan.numbers]) if plan.numbers else ()
        ctx.shapes = plan.shapes or [root.shape for root in roots]
        return roots  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Compute the gradients of the differentiable inputs."""
        plan: Plan = ctx.plan
        pullback = plan.usual.get(forms(tangents))
        if pullback is not None and ctx.inputs is not None and is_alone():
            given = [tangent for tangent in tangents if tangent is not None]
            return None, None, *_computed(ctx, plan, pullback, given, tangents)
        no_tangent = all(tangent is None for tangent in tangents)
        # Two more, since `apply` takes the plan and the call before the tensors.
        if no_tangent and not plan.asks:
            return (None,) * (len(plan.wrt) + 2)
        # Dispatch modes see operators of eager's backward; users' backwards call function modes.
        if dispatch_modes() or (plan.asks and function_mode_is_on()):
            return None, None, *_gradients_by_pytorch(ctx, plan, tangents)
        if function_mode_is_on():  # eager's backward, in C++, calls none
            with without_function_modes():
                return Compiled.backward(ctx, *tangents)
        if no_tangent or _only_pytorch_can(plan, tangents):
            return None, None, *_gradients_by_pytorch(ctx, plan, tangents)
        if ctx.inputs is None:
            # `saved_tensors` raises this by itself only if the node has saved any.
            raise RuntimeError(FREED)
        if not plan.variants.part.gradients:  # no input has one, as in `norm(x, 0)`
            return (None,) * (len(plan.wrt) + 2)
        return None, None, *_gradients_by_program(ctx, plan, tangents)


def _gradients_by_program(
    ctx: Any, plan: Plan, tangents: Sequence[torch.Tensor | None]
) -> Sequence[torch.Tensor | None]:
    """Compute the gradients by the backward program for the layout of ``tangents``."""
    pullback = plan.variants[plan.layout(tangents)]
    wanted = tuple(map(in_this_call, pullback.tangents, tangents))
    compacted = tuple(map(compact, tangents, wanted))
    if any(map(is_unlike, compacted, wanted, ctx.shapes)):
        return _gradients_by_pytorch(ctx, plan, tangents)
    given = _given(compacted, pullback.tangents, ctx.shapes)
    if plan.shapes and _is_usual(given, tangents) and (form := forms(tangents)):
        plan.usual[form] = pullback
    del compacted
    return _computed(ctx, plan, pullback, given, tangents)


def _computed(
    ctx: Any,
    plan: Plan,
    pullback: Pullback,
    given: list[torch.Tensor],
    tangents: Sequence[torch.Tensor | None],
) -> Sequence[torch.Tensor | None]:
    """Run ``pullback`` on the saved values and ``given``, the ``tangents`` as it takes them.

    ``given`` is emptied.
    """
    values = [*_saved(ctx, plan)[: len(plan.tensors)], *ctx.numbers]
    if ctx.versions and not ctx.hooked:
        check_versions(ctx.versions)
    order = plan.order
    # The program empties the box as it goes: other references would keep tensors to its end.
    box = [values[order[i]] for i in pullback.saved]
    if ctx.hooked:
        box = unpacked(box, pullback.takes)
    box += given
    given.clear()
    del values
    shares = pullback.shares
    # Hooks on saved tensors see all that the segment saves: they have the whole backward.
    some = None if shares is None or ctx.hooked else shares.wanted(ctx)
    _free(ctx, plan)
    if shares is not None and some is not None:
        found = shares.gradients(ctx, some, box, tangents)
        if found is not None:
            return found
    del tangents
    gradients = pullback.program(box)
    missing = pullback.missing
    found = [None if i in missing else gradients[i] for i in plan.wrt]
    if layouts := pullback.laid_out:
        pairs = zip(found, map(layouts.get, plan.wrt), strict=True)
        return [x if x is None or p is None else as_in_eager(x, p) for x, p in pairs]
    return found


def _is_usual(given: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]) -> bool:
    """Check that ``given`` are the ``tangents`` themselves, and plain memory."""
    there = [tangent for tangent in tangents if tangent is not None]
    same = len(given) == len(there) and all(map(operator.is_, given, there))
    return same and all(form_of(tangent) is Form.PLAIN for tangent in there)


def _given(
    tangents: Sequence[torch.Tensor | None],
    layouts: Sequence[Any],
    shapes: Sequence[torch.Size],
) -> list[torch.Tensor]:
    """The tangents that the backward takes, with the strides that it takes them with."""
    return [
        zeros(expected, shape) if tangent is None else laid_out(tangent, expected)
        for tangent, expected, shape in zip(tangents, layouts, shapes, strict=True)
        if expected is not None
    ]


def _only_pytorch_can(plan: Plan, tangents: Sequence[torch.Tensor | None]) -> bool:
    """Check that no program computes all gradients for ``tangents``.

    Gradients are recorded (``create_graph=True``), forward-mode AD is on, a tangent is sparse or
    batched, or the ambient autocast would cast in eager's backward.
    """
    if torch.is_grad_enabled() or forward_level() >= 0 or not all(map(has_memory, tangents)):
        return True
    return _has_other_casts(plan, tangents)


def _has_other_casts(plan: Plan, tangents: Sequence[torch.Tensor | None]) -> bool:
    """Check that eager's backward would cast otherwise under the ambient autocast."""
    ambient = ambient_autocast()
    return bool(ambient.items) and plan.variants.casts(plan.layout(tangents), ambient)


def _called(node: Any, *tangents: torch.Tensor | None) -> Any:
    """Implement ``y.grad_fn(tangent)``; one gradient is returned by itself, as by PyTorch's nodes.

    :raises TypeError: if the number of tangents is not that of the node's results.
    """
    if len(tangents) != len(node.shapes):
        raise TypeError(f"expected {len(node.shapes)} arguments, got {len(tangents)} instead")
    _, _, *gradients = node.apply(*tangents)
    return gradients[0] if len(gradients) == 1 else tuple(gradients)


# `FunctionMeta` makes this class, without a `__call__`, which nodes of operators in eager have.
if node := getattr(Compiled, "_backward_cls", None):
    node.__call__ = _called


def run_by_nodes(backward: Callable[..., Any]) -> None:
    """Let nodes call ``backward``: PyTorch's method looks up each time which one the class has."""
    if node is not None:
        node.apply = backward


def _free(ctx: Any, plan: Plan) -> None:
    """Free what the node keeps, unless the graph is retained."""
    if not backward_keeps_graph():
        ctx.maybe_clear_saved_tensors()
        ctx.inputs = None if plan.frees else ctx.inputs.freed()


def _saved(ctx: Any, plan: Plan) -> Sequence[torch.Tensor]:
    """Read the saved tensors. A node without any does not raise when it runs a second time.

    :raises RuntimeError: if one that was no leaf has been detached in place.
    """
    elsewhere = ctx.inputs is not None and ctx.inputs.elsewhere
    saved: Sequence[torch.Tensor] = ctx.saved_tensors if plan.tensors or elsewhere else ()
    for i, gradient in plan.given:
        if not saved[i].requires_grad and not _of_leaf(ctx.next_functions[gradient][0]):
            raise RuntimeError(DETACHED)
    return saved


def _of_leaf(node: Any) -> bool:
    """Check that ``node`` accumulates the gradient of a leaf, or is None."""
    return node is None or hasattr(node, "variable")


class _Unanswered(torch.autograd.Function):
    """A scalar with ``tensors`` as its inputs, to which its backward returns no gradients."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        """Return a zero scalar."""
        ctx.count = len(tensors)
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[None, ...]:
        """Return no gradients."""
        return (None,) * ctx.count  # type: ignore[no-any-return]


def _unanswered(roots: Sequence[torch.Tensor]) -> torch.Tensor:
    with torch.enable_grad():
        return _Unanswered.apply(*roots)  # type: ignore[no-any-return, no-untyped-call]


def _gradients_by_pytorch(
    ctx: Any, plan: Plan, tangents: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """Run the program again under PyTorch's autograd, and compute the gradients by that.

    Where grad mode is on, the gradients are differentiable functions of inputs and tangents.
    Without any tangent, users' backwards are called with zeros. The gradients are of aliases of the
    inputs: one input may be computed from another, and the path between them is not part of the
    program.

    :raises RuntimeError: if the run would differ: an input has been freed, or has been written by
        somebody else.
    """
    again = torch.is_grad_enabled()
    with outside_levels(), without_modes():  # modes see a forward once, in the user's call
        roots, aliases = _run_again(ctx, plan)
        present = [(r, t) for r, t in zip(roots, tangents, strict=True) if t is not None]
        asked = [r for r, _ in present] or [_unanswered(roots)]
        # The tangent of the scalar that `_unanswered` returns.
        given = [t for _, t in present] or [torch.ones(())]
    found = engine_gradients(asked, [*aliases.values()], given, create_graph=again)
    _free(ctx, plan)
    gradients = dict(zip(aliases, found, strict=True))
    # Contributions that autograd would add come as one sum, at the first place; others are None.
    return tuple([gradients.pop(i, None) for i in plan.places])


def _run_again(ctx: Any, plan: Plan) -> tuple[Sequence[torch.Tensor], Mapping[int, torch.Tensor]]:
    """Return differentiable roots, and the aliases of the inputs
    that they depend on, by position.
    """
    inputs = plan.sources.inputs(_saved(ctx, plan), ctx.inputs)
    with torch.enable_grad():
        # Not `view_as`, the gradient of which is a view.
        aliases = {i: torch.ops.aten.alias.default(inputs[i]) for i in plan.places}
        for i, alias in aliases.items():
            inputs[i] = alias
        # Dropout has to draw what it drew in the forward; other draws go on from where they are.
        now = states(plan.devices)
        advance(plan.devices, ctx.states)
        try:
            with autocast_as_in(plan.variants.functional.context):
                return plan.variants.again(*inputs), aliases
        finally:
            advance(plan.devices, now)
