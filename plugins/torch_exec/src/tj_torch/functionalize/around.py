"""Wrap a functional program in its epilogue and in fallbacks to other programs.

If arguments share memory that is written, a program for this aliasing runs. If the functional
program raises, the acquired one runs, and raises the user's errors in their order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    Expand,
    Proxy,
    RuleTable,
    TensorProxy,
    Trace,
    generate,
    requires_grad,
)
from tj_core.internal import Recompiler

from tj_torch.functionalize.bases import compiled, overlap
from tj_torch.functionalize.indexing import may_refuse_an_index
from tj_torch.functionalize.objects import Unsuitable
from tj_torch.functionalize.outer import PROGRAM
from tj_torch.guards.branches import once
from tj_torch.guards.overlap import Group, dispatch_on_aliasing, unless_held_twice
from tj_torch.ops.facts.metadata_mutation import detaches
from tj_torch.runtime.checks import if_autograd_allows
from tj_torch.runtime.rollback import raising, unless_it_raises
from tj_torch.torch_private.ops import can_be_written, has_no_hooks, survives_writes

if TYPE_CHECKING:
    from tj_torch.functionalize.functionalize import Functionalized

__all__ = ["Wrap", "draws_from", "generators_in", "with_bases", "with_errors", "wrapping"]

Run = Callable[..., Any]
Wrap = Callable[[Run, Recompiler], Run]


def with_errors(trace: Trace) -> Wrap:
    """Wrapper that runs a functional program, and raises as the acquired ``trace`` does."""
    devices, generators = list(draws_from(trace)), generators_in(trace)

    def wrap(function: Run, recompiler: Recompiler) -> Run:
        return unless_it_raises(raising(function), _in_order(recompiler), devices, generators)

    return wrap


def _in_order(recompiler: Recompiler) -> Run:
    """The acquired program with each call by itself: a region draws random numbers too early."""
    return once(lambda: recompiler.acquired(fused=False).function)


def generators_in(trace: Trace) -> list[torch.Generator]:
    """The generators that a program names."""
    return [c for c in trace.constants().values() if isinstance(c, torch.Generator)]


def with_bases(epilogue: Trace, made: Functionalized) -> Wrap:
    """Wrapper with ``epilogue`` for a program of one input-aliasing pattern.

    Its caller checked the pattern, so it needs no dispatch of its own.

    :raises Unsuitable: if autograd metadata of an argument that shares memory is mutated.
    """
    if made.autograd_changes:
        raise Unsuitable("autograd metadata of a tensor that shares memory is mutated")
    return lambda function, _: generate(epilogue, {PROGRAM: raising(function)}).function


def wrapping(
    trace: Trace,
    made: Functionalized,
    epilogue: Trace,
    expand: RuleTable[Expand],
    between: Sequence[str],
    fused: bool,
) -> Wrap:
    """Wrapper with ``epilogue`` that calls the functional program or, where needed, another one.

    The functional program writes the arguments in ``between`` itself. With ``fused``, executors may
    run several calls as one, whose errors differ from those of the calls.
    """
    tensors = [i for i, p in enumerate(trace.inputs) if _has_memory(p)]
    kinds = {i: made.kind_of(trace.inputs[i]) for i in tensors}
    parts = {i: kind.parts for i, kind in kinds.items() if kind is not None}
    # A change of metadata bumps the version counter, which arguments that share memory share.
    counted = made.objects.bumps.keys() if made.differentiates else ()
    names = {*made.writes, *counted}
    mutated = [i for i in tensors if trace.inputs[i].name in names]
    changed = mutated or made.autograd_changes
    changed = changed or [i for i in tensors if made.objects.bumps.get(trace.inputs[i].name)]
    allowed = list(_conditions(trace, made))
    early = [i for i, p in enumerate(trace.inputs) if p.name in between]
    devices = list(draws_from(trace))
    generators = generators_in(trace)
    again = fused and may_refuse_an_index(trace)
    changes = [
        (i, c) for i, p in enumerate(trace.inputs) for c in made.autograd_changes.get(p.name, ())
    ]
    detached = [i for i, call in changes if detaches(call)]
    freed = [i for i, call in changes if not detaches(call)]

    def wrap(function: Callable[..., Any], recompiler: Recompiler) -> Callable[..., Any]:
        if not (changed or again):
            return generate(epilogue, {PROGRAM: function}).function
        plain = generate(epilogue, {PROGRAM: raising(function)}).function
        raised = _in_order(recompiler)
        run = unless_it_raises(plain, raised, devices, generators, early)
        if not changed:
            return run
        acquired = once(lambda: recompiler.acquired().function)
        run = apart(run, recompiler, acquired, raised)
        return if_autograd_allows(run, detached, freed, acquired) if changes else run

    def apart(run: Run, recompiler: Recompiler, acquired: Run, raised: Run) -> Run:
        """``run`` if no written argument shares memory, else a program for the aliasing."""
        if not allowed and (not mutated or len(tensors) == 1) and not parts:
            return run

        counter = itertools.count()

        def make(found: tuple[Group, ...]) -> Callable[..., Any]:
            try:
                wanted = [g for g in found if made.differentiates or overlap(trace, g)]
                if not wanted:
                    return run
                program = compiled(trace, wanted, expand, recompiler, f"shared_{next(counter)}")
            except Unsuitable:
                return acquired
            return unless_it_raises(program, raised, devices, generators)

        plain = [i for i in tensors if i not in parts]
        found = dispatch_on_aliasing(run, plain, mutated, make, acquired, allowed)
        return unless_held_twice(found, tensors, parts, mutated, acquired) if parts else found

    return wrap


def _has_memory(p: Proxy) -> bool:
    return isinstance(p, TensorProxy) and p.layout == "strided"


def _conditions(
    trace: Trace, made: Functionalized
) -> Iterator[tuple[int, Callable[[torch.Tensor], bool]]]:
    """Checks of inputs that require grad and are written: where one fails, autograd refuses."""
    for i, p in enumerate(trace.inputs):
        if requires_grad(p):
            if any(write.visible for write in made.writes.get(p.name, {}).values()):
                yield i, can_be_written
                yield i, has_no_hooks
            elif made.objects.bumps.get(p.name):
                yield i, survives_writes


def draws_from(trace: Trace) -> Iterator[str]:
    """Devices whose default generators the program draws from, as ``cuda:0``."""
    for call in trace.calls:
        for effect in call.effects.ordered:
            if effect.startswith("random:"):
                yield effect.removeprefix("random:")
