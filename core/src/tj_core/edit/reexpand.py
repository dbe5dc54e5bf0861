"""Expand calls again: after a change of their inputs, or to check their metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tj_core.contract.expansion import Expand, Expanded, bind_outputs
from tj_core.edit.bodies import formals, with_args
from tj_core.edit.subprograms import returned, with_programs
from tj_core.errors import TraceError
from tj_core.ir.proxy import Proxy, TensorProxy
from tj_core.ir.substitution import substituted, substitution
from tj_core.ir.symbol import PLAIN_CONTEXT, Context
from tj_core.ir.tags import TagRegistry, TagSet
from tj_core.ir.trace import Body, BoundSymbol, Trace
from tj_core.ir.tree import leaves, map_tree

if TYPE_CHECKING:
    from tj_core.contract.rules import RuleTable

__all__ = ["derive", "note_new_values", "reexpand", "reexpand_all"]


def derive(
    call: BoundSymbol,
    expand: RuleTable[Expand],
    tags: TagRegistry,
    context: Context = PLAIN_CONTEXT,
) -> Expanded | None:
    """Outputs, effects and body of ``call``, from its rule, else from its body.

    For a call with an edited body, and for a claimed call around the original one, the body
    decides, even if there is a rule for the namespace. None without a rule and a body, and for a
    side effect without a body.
    ``context`` is the context of the call in whose body this one stands.
    """
    if call.subprograms:
        outputs = returned(call)
        return None if outputs is None else Expanded(outputs, call.effects, call.body)
    if call.body is None and "side_effect" in call.effects.ordered:
        return None  # a run of it, even on fake tensors, may have the side effect
    rule = None if _is_its_body(call) else expand.get(call.symbol)
    if rule is not None:
        return rule.value(call.replace(context=call.context.over(context)))
    if call.body is None:
        return None
    return _through_body(call, call.body, expand, tags, call.context.over(context))


def _is_its_body(call: BoundSymbol) -> bool:
    if call.body is None or call.symbol.edited:
        return call.body is not None
    names = [inner.symbol.qualname for inner in call.body.calls]
    return call.symbol.namespace == call.executor and names == [call.symbol.path]


def _through_body(
    call: BoundSymbol, body: Body, expand: RuleTable[Expand], tags: TagRegistry, context: Context
) -> Expanded:
    """The facts of ``call``, from the calls in its body."""
    inputs = tuple(formals(call).values())
    env: dict[str, Any] = {
        old.name: new for old, new in zip(body.inputs, inputs, strict=True) if old != new
    }
    calls = reexpand_all(body.calls, env, expand, tags, context)
    outputs = substituted(body.outputs, env)
    said = leaves(call.outputs)
    outs = map_tree(lambda formal: _with_autograd(formal, next(said)), outputs)
    updates = tuple((i, substituted(v, env)) for i, v in body.updates)
    return Expanded(outs, call.effects, Body(inputs, calls, outputs, updates))


def _with_autograd(formal: Any, said: Any) -> Any:
    """A body's value with the call's ``requires_grad``, which bodies may leave out."""
    if isinstance(formal, TensorProxy) and isinstance(said, TensorProxy) and said.requires_grad:
        return formal.replace(requires_grad=True)
    return formal


def note_new_values(old: BoundSymbol, new: BoundSymbol, env: dict[str, Any]) -> None:
    """Map in ``env`` the values that ``old`` defines to those of ``new``, where these differ."""
    for before, after in zip(leaves(old.outputs), leaves(new.outputs), strict=True):
        if isinstance(before, Proxy) and before != after:
            env[before.name] = after
    env.update({p.name: p for _, p in new.effects.rebinds if new is not old or p.name in env})


def reexpand(
    call: BoundSymbol,
    env: Mapping[str, Any],
    expand: RuleTable[Expand],
    tags: TagRegistry,
    context: Context = PLAIN_CONTEXT,
) -> BoundSymbol:
    """``call`` with its arguments looked up in ``env``, expanded again if their metadata changed.

    Names, tags, source, parent and the tags inside the body stay. ``context`` is the context of the
    call in whose body this one stands.

    :raises RuleMissingError: if there is neither a rule nor a body to expand the call.
    :raises TraceError: if the outputs then have another structure.
    """
    if not any(p.name in env for p in call.flat_args):
        return call
    moved = with_args(call, substitution(env))
    if _same_facts(call, moved):
        return moved
    moved = _with_new_inputs(moved, expand, tags)
    expanded = derive(moved, expand, tags, context)
    if expanded is None:
        expanded = expand.require(moved).value(moved)
    return _renewed(call, moved, expanded, tags)


def reexpand_all(
    calls: Iterable[BoundSymbol],
    env: dict[str, Any],
    expand: RuleTable[Expand],
    tags: TagRegistry,
    context: Context = PLAIN_CONTEXT,
) -> tuple[BoundSymbol, ...]:
    """`reexpand` each of ``calls``; ``env`` gains the new outputs of each for the later ones."""
    made = []
    for call in calls:
        made.append(reexpand(call, env, expand, tags, context))
        note_new_values(call, made[-1], env)
    return tuple(made)


def _with_new_inputs(
    call: BoundSymbol, expand: RuleTable[Expand], tags: TagRegistry
) -> BoundSymbol:
    """``call`` with subprograms expanded again for the metadata of the call's arguments."""
    args = call.flat_args
    operands = {id(inner.program): inner.operands for inner in call.subprograms}

    def renewed(program: Trace) -> Trace:
        places = operands[id(program)]
        pairs = zip(program.inputs, places, strict=True)
        inputs = tuple(p if i is None else _meta_of(args[i], p) for p, i in pairs)
        env: dict[str, Any] = {
            old.name: new for old, new in zip(program.inputs, inputs, strict=True) if old != new
        }
        if not env:
            return program
        calls = reexpand_all(program.calls, env, expand, tags)
        outputs = substituted(program.outputs, env)
        return program.replace(inputs=inputs, calls=calls, outputs=outputs)

    return with_programs(call, renewed, for_inputs=True)


def _meta_of(arg: Proxy, p: Proxy) -> Proxy:
    """The subprogram's input ``p`` with metadata of ``arg``, except for a missing gradient flag."""
    if isinstance(arg, TensorProxy) and isinstance(p, TensorProxy) and not p.requires_grad:
        arg = arg.replace(requires_grad=False)
    return arg.replace(name=p.name, tags=p.tags)


def _same_facts(call: BoundSymbol, moved: BoundSymbol) -> bool:
    """Compare the arguments' metadata, on which the facts of a call depend."""
    if moved is call:
        return True
    before, after = (leaves((c.args, c.kwargs)) for c in (call, moved))
    same = all(_same(a, b) for a, b in zip(before, after, strict=True))
    # Two arguments that are one value are written together.
    if not (call.effects.mutates or call.effects.rebinds):
        return same
    return same and len(formals(call)) == len(formals(moved))


def _renewed(
    call: BoundSymbol, moved: BoundSymbol, expanded: Expanded, tags: TagRegistry
) -> BoundSymbol:
    old, new = list(leaves(call.outputs)), list(leaves(expanded.outputs))
    if [isinstance(x, Proxy) for x in old] != [isinstance(x, Proxy) for x in new]:
        raise TraceError(
            f"{call.symbol} has other outputs now that its inputs changed", source=call.source
        )
    names = [p.name for p in call.flat_outs]
    bound = bind_outputs(moved, expanded, lambda i: names[i])
    tagged = iter(call.flat_outs)
    return bound.replace(
        outputs=map_tree(lambda p: p.replace(tags=next(tagged).tags), bound.outputs, Proxy),
        body=_body_tags(call.body, bound.body, tags),
    )


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, Proxy) and isinstance(after, Proxy):
        return before.same_meta(after)
    if isinstance(before, Proxy) or type(before) is not type(after):
        return False
    return before is after or bool(before == after)


def _body_tags(old: Body | None, new: Body | None, tags: TagRegistry) -> Body | None:
    """``new`` with the tags of ``old``, call by call, where both have the same symbols."""
    if old is None or new is None or old is new:
        return new
    if [c.symbol for c in old.calls] != [c.symbol for c in new.calls]:
        return _common_tags(old, new, tags)
    pairs = list(zip(old.calls, new.calls, strict=True))
    tagged = {
        q.name: q.replace(tags=p.tags)
        for a, b in pairs
        for p, q in zip(a.flat_outs, b.flat_outs, strict=False)
        if p.tags
    }
    calls = tuple(
        b.map_proxies(substitution(tagged)).replace(
            tags=a.tags, body=_body_tags(a.body, b.body, tags)
        )
        for a, b in pairs
    )
    if all(a == b for a, b in zip(calls, new.calls, strict=True)):
        return new
    return Body(new.inputs, calls, substituted(new.outputs, tagged), new.updates)


def _common_tags(old: Body, new: Body, tags: TagRegistry) -> Body:
    """``new``, whose calls differ from those of ``old``, with the tags common to all old calls."""
    held = [dict(c.tags) for c in old.calls]
    first = held[0] if held else {}
    shared = TagSet({k: v for k, v in first.items() if all(h.get(k, h) == v for h in held)})
    if not shared:
        return new
    calls = tuple(c.replace(tags=tags.merge(shared, c.tags)) for c in new.calls)
    return Body(new.inputs, calls, new.outputs, new.updates)
