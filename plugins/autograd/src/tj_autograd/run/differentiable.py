"""Functions that take a program's inputs through PyTorch's autograd, as generated code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import Namer, Proxy, TensorProxy, define, requires_grad
from tj_core.internal import value_text
from tj_torch.internal import is_sized, level_depth, unwrap_if_dead, with_strides

from tj_autograd.joint.functions import has_own_backward
from tj_autograd.run.boundary import Call, Compiled, Plan
from tj_autograd.run.holders import holders
from tj_autograd.run.layouts import layout_of
from tj_autograd.run.saved_inputs import sources
from tj_autograd.run.sums import Summed, summed
from tj_autograd.run.views import Views, views

if TYPE_CHECKING:
    from tj_autograd.run.shares import Boxed
    from tj_autograd.run.variants import Key, Variants
    from tj_autograd.split.halves import Halves

__all__ = ["differentiable"]


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
) -> Plan:
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
    return Plan(
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
        _shapes(halves.roots if whole else variants.outputs),
    )


def _shapes(outputs: Sequence[Proxy]) -> tuple[torch.Size, ...] | None:
    """Shapes of ``outputs``; None if one has symbols in its metadata, or is a subclass."""
    found = []
    for p in outputs:
        if not isinstance(p, TensorProxy) or is_sized(p) or p.subclass is not None:
            return None
        found.append(torch.Size([n for n in p.shape if isinstance(n, int)]))
    return tuple(found)


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
    halves: Halves, segments: Sequence[Plan | Views], sums: Mapping[str, Sequence[str]]
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

    # `Function.apply` looks for levels of `torch.func`, and for tensors of left ones, at each node.
    plain = super(torch.autograd.Function, Compiled).apply
    apply, direct, within = (
        free("_apply"),
        bound("_direct", plain),
        bound("_within", Compiled.apply),
    )
    summed = bound("_summed", Summed.apply)
    plans = [segment for segment in segments if isinstance(segment, Plan)]
    names = [p.name for p in halves.forward.inputs]
    # Copies are made before the program writes, with the history that the inputs have now.
    copied = dict.fromkeys(i for plan in plans for i in plan.sources.copied)
    # `clone` keeps the strides of dense tensors alone.
    laid_out = bound("_with_strides", with_strides)
    copies = ", ".join(f"{i}: {laid_out}({names[i]}.clone(), {names[i]})" for i in copied)
    lines = [
        f"def {program}({', '.join(names)}):",
        f"    {call} = {bound('Call', Call)}([{', '.join(names)}], {{{copies}}})",
    ]
    aliases = {key: free(f"_{value}_{i}") for value in sums for i, key in enumerate(sums[value])}
    left = dict(sums)
    entering = {
        names[i]: free(f"_{names[i]}") for plan in plans for i in plan.places if i < len(names)
    }
    lines.append(f"    {apply} = {within} if {bound('_levels', level_depth)}() else {direct}")
    if entering:
        # A value may have the name of any builtin function.
        each, alive = bound("_map", map), bound("_alive", unwrap_if_dead)
        given = _listed(entering)
        lines.append(f"    {_listed(entering.values())} = {each}({alive}, ({given}))")
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
        pairs = zip(plan.wrt, values, strict=True)
        takes = [aliases.get(str(key), entering.get(v, v)) for key, v in pairs]
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


def _values(halves: Halves, segments: Sequence[Plan | Views]) -> Iterator[str]:
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
    return _listed(p.name for p in proxies)


def _listed(names: Iterable[str]) -> str:
    return "".join(f"{name}, " for name in names)
