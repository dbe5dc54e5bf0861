"""Functional forms of calls with subprograms whose memory has no other users.

A loop may return its operand, and a `torch.autograd.Function` may return its argument or write it
(`mark_dirty`). If that memory is used nowhere else, the call can return new values instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tj_core.extend import (
    AliasFacts,
    BoundSymbol,
    Expand,
    Proxy,
    RuleTable,
    Subprogram,
    Symbol,
    TagRegistry,
    TensorProxy,
    Trace,
    TraceEditor,
    alias_facts,
    bind_outputs,
    leaves,
    map_tree,
    reexpand_all,
)
from tj_core.internal import NO_EFFECTS

from tj_torch.ops.sizes.program import is_dense

__all__ = ["FunctionalCall", "functional_subprograms"]

FUNCTION = "tj.autograd_function"


@dataclass(frozen=True, slots=True)
class FunctionalCall:
    """Call in functional form; ``overwritten`` are the values that the acquired call mutates."""

    call: BoundSymbol
    overwritten: tuple[Proxy, ...] = ()


def functional_subprograms(
    trace: Trace, expand: RuleTable[Expand], tags: TagRegistry
) -> Iterator[FunctionalCall]:
    """Calls of ``trace``; those with subprograms in functional form if that is invisible."""
    facts = alias_facts(trace)
    for index, call in enumerate(trace.calls):
        effects = call.effects
        if not call.subprograms or not (effects.mutates or effects.aliases) or effects.rebinds:
            yield FunctionalCall(call)
        elif not effects.mutates:
            yield FunctionalCall(_sharing_region(call, facts))
        elif _may_write(trace, index, facts):
            yield _mutating_region(call, expand, tags)
        else:
            yield FunctionalCall(call)


# ---------------------------------------------------------------------------- sharing


def _sharing_region(call: BoundSymbol, facts: AliasFacts) -> BoundSymbol:
    """``call`` without aliases to its arguments, if no such memory is written or returned.

    The caller may write to returned memory, or ask for its base.
    """
    roots = {facts.roots[call.flat_outs[a.output].name] for a in call.effects.aliases}
    if not roots.isdisjoint(facts.mutated | facts.escaping):
        return call
    return call.replace(effects=replace(call.effects, aliases=()))


# ---------------------------------------------------------------------------- writing


def _may_write(trace: Trace, index: int, facts: AliasFacts) -> bool:
    """Test if only the Function at ``index`` can observe its writes.

    The written arguments must be those that the Function marks as dirty and returns. Each must be
    memory from one call that is not viewed, written or returned, nor used afterwards except
    through the Function's result.
    """
    call = trace.calls[index]
    mutated = {call.flat_args[i].name for i in call.effects.mutates}
    given = {p.name for p in trace.inputs}
    after = {p.name for c in trace.calls[index + 1 :] for p in c.flat_args}
    if call.symbol.qualname != FUNCTION or call.effects.marks:
        return False
    if mutated & (given | after) or mutated != _dirty(call):
        return False
    others = [c for c in trace.calls if c is not call]
    return all(
        facts.roots[name] == name
        and name not in facts.escaping
        and _is_plain(next(p for p in call.flat_args if p.name == name))
        and not any(_shares(c, name, facts) for c in others)
        for name in mutated
    )


def _dirty(call: BoundSymbol) -> set[str]:
    """Arguments of a Function that it marks as dirty and returns."""
    forward = call.subprograms[0]
    returned = list(leaves(forward.program.outputs[0]))
    marked = {returned[i].name for i in dict(call.kwargs).get("dirty", ())}
    pairs = zip(forward.program.inputs, forward.operands, strict=True)
    return {call.flat_args[i].name for p, i in pairs if p.name in marked and i is not None}


def _is_plain(p: Proxy) -> bool:
    return isinstance(p, TensorProxy) and is_dense(p) and not p.flags


def _shares(call: BoundSymbol, name: str, facts: AliasFacts) -> bool:
    """Test if ``call`` writes the memory of ``name`` or returns an alias of it."""
    args, outs = call.flat_args, call.flat_outs
    touched = [args[i] for i in (*call.effects.mutates, *(i for i, _ in call.effects.rebinds))]
    touched += [outs[a.output] for a in call.effects.aliases]
    return any(facts.roots[p.name] == name for p in touched)


def _mutating_region(
    call: BoundSymbol, expand: RuleTable[Expand], tags: TagRegistry
) -> FunctionalCall:
    """The Function with a forward that copies the arguments it writes."""
    mutated = {call.flat_args[i].name: call.flat_args[i] for i in call.effects.mutates}
    forward = call.subprograms[0]

    def copying(subprogram: Subprogram) -> Subprogram:
        if subprogram is not forward:
            return subprogram
        pairs = zip(subprogram.program.inputs, subprogram.operands, strict=True)
        inputs = [p for p, i in pairs if i is not None and call.flat_args[i].name in mutated]
        return replace(subprogram, program=_on_copies(subprogram.program, inputs, expand, tags))

    made = call.replace(
        args=map_tree(copying, call.args, Subprogram),
        kwargs=tuple((k, () if k == "dirty" else v) for k, v in call.kwargs),
        effects=replace(NO_EFFECTS, ordered=call.effects.ordered),
    )
    return FunctionalCall(made, tuple(mutated.values()))


def _on_copies(
    program: Trace, inputs: list[Proxy], expand: RuleTable[Expand], tags: TagRegistry
) -> Trace:
    """``program`` that starts by copying ``inputs``."""
    editor = TraceEditor(program)
    for p in inputs:
        plain = BoundSymbol(Symbol("torch", "clone"), (p,), context=program.context)
        name = editor.fresh(p.name)
        made = bind_outputs(plain, expand.require(plain).value(plain), lambda _: name)  # noqa: B023
        editor.append(made)
        editor.values[p.name] = made.outputs
    editor.append(*reexpand_all(program.calls, editor.values, expand, tags))
    return editor.done()
