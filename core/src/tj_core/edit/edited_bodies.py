"""Calls with an edited body, which are operations of their own.

A transform's rule for an operator thus also applies inside of calls that consist of the operator,
and leaves other calls whole. The symbol of an edited call is ``<symbol>.rewritten``, so that no
rule for the original applies. No rule expands an edited call; it runs as its body.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tj_core.ir.effects import Alias, Effects
from tj_core.ir.names import formal_index
from tj_core.ir.proxy import Proxy, TensorProxy
from tj_core.ir.tree import leaves, map_tree

if TYPE_CHECKING:
    from tj_core.ir.trace import Body, BoundSymbol

__all__ = ["with_edited_body"]


def with_edited_body(call: BoundSymbol, body: Body) -> BoundSymbol:
    """``call`` as an edited operation, with the outputs and effects of its new body."""
    formals = leaves(body.outputs)
    outputs = map_tree(lambda out: _output(out, next(formals)), call.outputs)
    made = call.replace(symbol=call.symbol.as_edited(), body=body, outputs=outputs)
    return made.replace(effects=_effects(call, made, body))


def _output(out: Any, formal: Any) -> Any:
    """The call's new output: the body's metadata, the old output's name, tags and autograd."""
    if not isinstance(out, Proxy) or not isinstance(formal, Proxy):
        return formal
    if isinstance(out, TensorProxy) and isinstance(formal, TensorProxy):
        formal = formal.replace(requires_grad=out.requires_grad)
    return out if out.same_meta(formal) else formal.replace(name=out.name, tags=out.tags)


def _effects(call: BoundSymbol, made: BoundSymbol, body: Body) -> Effects:
    """The old call's effects, without aliases of lost outputs, and those of the new body."""
    position = {p.name: i for i, p in enumerate(made.flat_outs)}
    now = {i: position[p.name] for i, p in enumerate(call.flat_outs) if p.name in position}
    aliases = [
        replace(a, output=now[a.output], index=now[a.index] if a.kind == "out" else a.index)
        for a in call.effects.aliases
        if a.output in now and (a.kind != "out" or a.index in now)
    ]
    known = {a.output for a in aliases}
    aliases += [a for a in _passed_through(made, body) if a.output not in known]
    ordered = [*call.effects.ordered, *(o for c in body.calls for o in c.effects.ordered)]
    return replace(call.effects, aliases=tuple(aliases), ordered=tuple(dict.fromkeys(ordered)))


def _passed_through(made: BoundSymbol, body: Body) -> list[Alias]:
    """Aliases of the outputs that are an argument, or the same value as an earlier output."""
    inputs = {p.name for p in body.inputs}
    pairs = zip(leaves(body.outputs), leaves(made.outputs), strict=True)
    formals = [formal for formal, out in pairs if isinstance(out, Proxy)]
    first: dict[str, int] = {}
    found = []
    for i, formal in enumerate(formals):
        if formal.name in inputs:
            found.append(Alias(i, "arg", formal_index(formal.name), identical=True))
        elif first.setdefault(formal.name, i) != i:
            found.append(Alias(i, "out", first[formal.name], identical=True))
    return found
