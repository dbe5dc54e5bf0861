"""The boundary to PyTorch's autograd: a forward and a backward program as one differentiable call.

Only the tensors that need a gradient pass through ``autograd.Function.apply``; everything else goes
in and comes out beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import Namer, Proxy, TensorProxy, define, requires_grad
from tj_core.internal import value_text
from tj_torch.internal import (
    ambient_autocast,
    autocast_as_in,
    backward_keeps_graph,
    dispatch_modes,
    engine_gradients,
    forward_level,
    function_mode_is_on,
    outside_levels,
    saved_tensors_are_hooked,
    without_function_modes,
    without_modes,
)

from tj_autograd.joint.functions import has_own_backward
from tj_autograd.joint.replay import advance, states
from tj_autograd.run.crossing import (
    as_in_eager,
    has_memory,
    is_unlike,
    laid_out,
    unpacked,
    zeros,
)
from tj_autograd.run.holders import Holders, Versions, check_versions, holders
from tj_autograd.run.layouts import layout_of
from tj_autograd.run.saved_inputs import FREED, Sources, sources
from tj_autograd.run.sums import Summed, summed
from tj_autograd.run.tangents import compact, in_this_call
from tj_autograd.run.views import Views, views

if TYPE_CHECKING:
    from tj_autograd.joint.build import Layout
    from tj_autograd.run.shares import Boxed
    from tj_autograd.run.variants import Key, Variants
    from tj_autograd.split.halves import Halves

__all__ = ["Compiled", "differentiable"]


DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)


@dataclass(frozen=True, slots=True)
class _Plan:
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

    def layout(self, tangents: Sequence[torch.Tensor | None]) -> Layout:
        """Layout of ``tangents``, None for each that does not exist."""
        pairs = zip(tangents, self.layouts, strict=True)
        return tuple([None if t is None else layout(t) for t, layout in pairs])


class _Call:
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

    def run(self, plan: _Plan) -> tuple[Any, Any]:
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
        ctx: Any, plan: _Plan, call: _Call, *differentiable: torch.Tensor
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
        ctx.numbers = tuple([saved[i] for i in plan.numbers])
        ctx.shapes = [root.shape for root in roots]
        return roots  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Compute the gradients of the differentiable inputs."""
        plan: _Plan = ctx.plan
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
    ctx: Any, plan: _Plan, tangents: Sequence[torch.Tensor | None]
) -> Sequence[torch.Tensor | None]:
    """Compute the gradients by the backward program for the layout of ``tangents``."""
    pullback = plan.variants[plan.layout(tangents)]
    wanted = tuple(map(in_this_call, pullback.tangents, tangents))
    compacted = tuple(map(compact, tangents, wanted))
    if any(map(is_unlike, compacted, wanted, ctx.shapes)):
        return _gradients_by_pytorch(ctx, plan, tangents)
    values = [*_saved(ctx, plan)[: len(plan.tensors)], *ctx.numbers]
    if ctx.versions and not ctx.hooked:
        check_versions(ctx.versions)
    order = plan.order
    # The program empties the box as it goes: other references would keep tensors to its end.
    box = [values[order[i]] for i in pullback.saved]
    if ctx.hooked:
        box = unpacked(box, pullback.takes)
    del values
    _add_tangents(box, compacted, pullback.tangents, ctx.shapes)
    shares = pullback.shares
    # Hooks on saved tensors see all that the segment saves: they have the whole backward.
    some = None if shares is None or ctx.hooked else shares.wanted(ctx)
    _free(ctx, plan)
    if shares is not None and some is not None:
        found = shares.gradients(ctx, some, box, tangents)
        if found is not None:
            return found
    del tangents, compacted
    gradients = pullback.program(box)
    missing = pullback.missing
    found = [None if i in missing else gradients[i] for i in plan.wrt]
    if layouts := pullback.laid_out:
        pairs = zip(found, map(layouts.get, plan.wrt), strict=True)
        return [x if x is None or p is None else as_in_eager(x, p) for x, p in pairs]
    return found


def _add_tangents(
    box: list[Any],
    tangents: Sequence[torch.Tensor | None],
    layouts: Sequence[Any],
    shapes: Sequence[torch.Size],
) -> None:
    """Append the tangents that the backward takes, with the strides that it takes them with."""
    for tangent, expected, shape in zip(tangents, layouts, shapes, strict=True):
        if expected is not None:
            box.append(zeros(expected, shape) if tangent is None else laid_out(tangent, expected))


def _only_pytorch_can(plan: _Plan, tangents: Sequence[torch.Tensor | None]) -> bool:
    """Check that no program computes all gradients for ``tangents``.

    Gradients are recorded (``create_graph=True``), forward-mode AD is on, a tangent is sparse or
    batched, or the ambient autocast would cast in eager's backward.
    """
    if torch.is_grad_enabled() or forward_level() >= 0 or not all(map(has_memory, tangents)):
        return True
    return _has_other_casts(plan, tangents)


def _has_other_casts(plan: _Plan, tangents: Sequence[torch.Tensor | None]) -> bool:
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


def _free(ctx: Any, plan: _Plan) -> None:
    """Free what the node keeps, unless the graph is retained."""
    if not backward_keeps_graph():
        ctx.maybe_clear_saved_tensors()
        ctx.inputs = None if plan.frees else ctx.inputs.freed()


def _saved(ctx: Any, plan: _Plan) -> Sequence[torch.Tensor]:
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
    ctx: Any, plan: _Plan, tangents: Sequence[torch.Tensor | None]
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


def _run_again(ctx: Any, plan: _Plan) -> tuple[Sequence[torch.Tensor], Mapping[int, torch.Tensor]]:
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


def differentiable(
    halves: Halves, forward: Boxed, variants: Sequence[Variants], order: Mapping[str, int]
) -> Callable[..., Any]:
    """Make a function of the inputs that runs the programs and is differentiable by PyTorch's
    autograd.

    ``order`` maps the label of a call to its index in the program.
    """
    drawn = (device for v in variants for device in v.rerun.devices)
    devices = tuple(dict.fromkeys(drawn))
    nodes = [v for v in variants if v.index not in v.cut.views]
    plans = {v.index: _plan(halves, v, None, devices) for v in nodes}
    first = nodes[0].index
    plans[first] = replace(plans[first], forward=forward)
    parts = [{str(k): v for k, v in _gradients(each).items()} for each in nodes]
    sums = summed(parts, order, halves.parts) if len(nodes) > 1 else {}
    segments = [plans.get(v.index) or views(v.functional, v.cut, v.index) for v in variants]
    return _generated(halves, segments, sums)


def _plan(
    halves: Halves, variants: Variants, forward: Boxed | None, devices: tuple[str, ...]
) -> _Plan:
    part, rerun, whole = variants.part, variants.rerun, variants.cut.whole
    everything = {p.name: i for i, p in enumerate(halves.saved)}
    mine = [(everything[p.name], isinstance(p, TensorProxy)) for p in part.saved]
    tensors = [i for i, is_tensor in mine if is_tensor]
    numbers = [i for i, is_tensor in mine if not is_tensor]
    position = {saved: i for i, saved in enumerate((*tensors, *numbers))}
    inputs = [p.name for p in rerun.trace.inputs]
    roots = [p.name for p in halves.roots]
    wrt = _gradients(variants)
    stored = [halves.saved[i].name for i in tensors]
    seen = {p.name for k in variants.cut.views for p in variants.cut.outputs[k]}
    return _Plan(
        forward,
        variants,
        None if whole else tuple(roots.index(p.name) for p in variants.outputs),
        tuple(tensors),
        tuple(numbers),
        tuple(position[i] for i, _ in mine),
        tuple(wrt),
        tuple(inputs.index(name) for name in wrt.values()),
        sources(
            rerun.trace.inputs,
            stored,
            rerun.depended,
            rerun.copied,
        ),
        tuple(map(layout_of, part.tangents)),
        devices,
        variants.frees,
        tuple((i, inputs.index(n)) for i, n in enumerate(stored) if n in seen),
        tuple((stored.index(n), i) for i, n in enumerate(wrt.values()) if n in stored),
        any(map(has_own_backward, rerun.trace.walk())),
        holders(halves),
    )


def _gradients(variants: Variants) -> dict[Key, str]:
    """Map the key of each gradient of a segment to the name of its value."""
    names = variants.part.gradients
    inputs = [p.name for p in variants.functional.inputs]
    if not names:  # the results require grad, so autograd needs inputs
        takes = variants.rerun.trace.inputs
        return {p.name: p.name for p in takes if requires_grad(p)}
    if variants.cut.whole:
        return {inputs.index(name): name for name in names}
    return {name: name.partition(".")[0] for name in names}


def _generated(
    halves: Halves, segments: Sequence[_Plan | Views], sums: Mapping[str, Sequence[str]]
) -> Callable[..., Any]:
    """Generate straight-line code from the inputs to the outputs; each value in ``sums`` gets a
    `Summed` node.
    """
    free = Namer(_values(halves, segments)).own
    call, program = free("_call"), free("computation")
    scope: dict[str, Any] = {}

    def bound(wish: str, value: Any) -> str:
        scope[name := free(wish)] = value
        return name

    apply, summed = bound("_apply", Compiled.apply), bound("_summed", Summed.apply)
    plans = [segment for segment in segments if isinstance(segment, _Plan)]
    names = [p.name for p in halves.forward.inputs]
    # Copies are made before the program writes, with the history that the inputs have now.
    copied = dict.fromkeys(i for plan in plans for i in plan.sources.copied)
    copies = ", ".join(f"{i}: {names[i]}.clone()" for i in copied)
    lines = [
        f"def {program}({', '.join(names)}):",
        f"    {call} = {bound('_Call', _Call)}([{', '.join(names)}], {{{copies}}})",
    ]
    aliases = {key: free(f"_{value}_{i}") for value in sums for i, key in enumerate(sums[value])}
    left = dict(sums)
    for k, plan in enumerate(segments):
        if isinstance(plan, Views):
            returned = _names(plan.outputs)
            made = bound(f"_views_{k}", plan.program)
            lines.append(f"    {returned and f'{returned}= '}{made}({_names(plan.inputs)})")
            lines.append(f"    {call}.inputs += ({returned})")
            continue
        # A transform of the joint trace may give the outputs of the whole program other names.
        whole = plan.variants.cut.whole
        returned = _names(halves.roots if whole else plan.variants.outputs)
        values = [plan.variants.rerun.trace.inputs[i].name for i in plan.places]
        takes = [aliases.get(str(key), v) for key, v in zip(plan.wrt, values, strict=True)]
        for value in left.keys() & set(values):
            keys = left.pop(value)
            made = "".join(f"{aliases[key]}, " for key in keys)
            lines.append(f"    {made} = {summed}({value}, {len(keys)})")
        taken = [bound(f"_plan_{k}", plan), call, *takes]
        lines.append(f"    {returned} = {apply}({', '.join(taken)})")
        if len(segments) > 1:
            lines.append(f"    {call}.inputs += ({returned})")
    if halves.rest:
        lines.append(f"    {_names(halves.rest)} = {call}.rest")
    result = value_text(halves.outputs, str, lambda c: bound("_constant", c.value))
    lines.append(f"    return {result}")
    return define("\n".join(lines), program, scope, "tj boundary")


def _values(halves: Halves, segments: Sequence[_Plan | Views]) -> Iterator[str]:
    """Names of the values that the generated code handles."""
    for p in (*halves.forward.inputs, *halves.rest):
        yield p.name
    for segment in segments:
        if isinstance(segment, Views):
            found: Sequence[Proxy] = (*segment.inputs, *segment.outputs)
        else:
            found = (*halves.roots, *segment.variants.outputs, *segment.variants.rerun.trace.inputs)
        yield from (p.name for p in found)


def _names(proxies: Sequence[Proxy]) -> str:
    return "".join(f"{p.name}, " for p in proxies)
