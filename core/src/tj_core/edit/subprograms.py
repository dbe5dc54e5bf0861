"""Subprograms: outputs and effects of a call with subprograms, also after edits of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tj_core.analysis.alias import Storage
from tj_core.edit.bodies import with_args
from tj_core.edit.tag_propagation import with_view_tags
from tj_core.errors import TraceError
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.proxy import Proxy, TensorProxy
from tj_core.ir.trace import BoundSymbol, Subprogram, Trace
from tj_core.ir.tree import leaves, map_tree
from tj_core.text.metadata import meta_text

if TYPE_CHECKING:
    from tj_core.ir.names import Namer
    from tj_core.ir.tags import TagRegistry

__all__ = ["inline_subprogram", "map_programs", "returned", "summed_effects", "with_programs"]


def map_programs(call: BoundSymbol, fn: Callable[[Trace], Trace]) -> BoundSymbol:
    """``call`` with ``fn`` applied to the program of each subprogram (itself if none changes)."""
    if not call.subprograms:
        return call
    new = {id(subprogram.program): fn(subprogram.program) for subprogram in call.subprograms}

    def renewed(subprogram: Subprogram) -> Subprogram:
        program = new[id(subprogram.program)]
        return subprogram if program is subprogram.program else replace(subprogram, program=program)

    args = map_tree(renewed, call.args, Subprogram)
    kwargs = map_tree(renewed, call.kwargs, Subprogram)
    if args is call.args and kwargs is call.kwargs:
        return call
    return call.replace(args=args, kwargs=kwargs)


def returned(call: BoundSymbol) -> Any:
    """The outputs of ``call`` as its subprograms return them; None if no subprogram returns them.

    Values have the subprograms' own names, and the call's ``requires_grad``, since a subprogram may
    run without autograd.

    :raises TraceError: if two subprograms return values of different metadata.
    """
    saying = [subprogram for subprogram in call.subprograms if subprogram.returns]
    if not saying:
        return None
    first = _first_outputs(call, saying[0])
    for other in saying[1:]:
        for mine, theirs in zip(first, _first_outputs(call, other), strict=True):
            if not _alike(mine, theirs):
                raise TraceError(
                    f"subprograms {saying[0].name!r} and {other.name!r} of {call.symbol} return "
                    f"{_text(mine)} and {_text(theirs)}, where they must return the same",
                    source=call.source,
                )
    found = iter(first)
    exact = len(saying) == 1
    return map_tree(lambda said: _with_autograd(next(found), said, exact), call.outputs)


def _first_outputs(call: BoundSymbol, subprogram: Subprogram) -> list[Any]:
    count = len(list(leaves(call.outputs)))
    found = list(leaves(subprogram.program.outputs))
    if len(found) < count:
        raise TraceError(
            f"subprogram {subprogram.name!r} of {call.symbol} returns {len(found)} values, "
            f"not {count}",
            source=call.source,
        )
    return found[:count]


def _alike(first: Any, second: Any) -> bool:
    """Compare the values of two branches for one output, without strides, flags and autograd."""
    if isinstance(first, TensorProxy) and isinstance(second, TensorProxy):
        loose = {"requires_grad": False, "strides": (), "flags": ()}
        return first.replace(**loose).same_meta(second.replace(**loose))
    return isinstance(first, Proxy) == isinstance(second, Proxy)


def _with_autograd(value: Any, said: Any, exact: bool) -> Any:
    """A subprogram's value with the call's ``requires_grad``, and its strides unless ``exact``."""
    if isinstance(value, TensorProxy) and isinstance(said, TensorProxy):
        value = value.replace(requires_grad=said.requires_grad)
        if not exact and len(said.strides) == len(value.strides):
            value = value.replace(strides=said.strides, flags=said.flags)
        return value
    return value if isinstance(said, Proxy) else said


def _text(value: Any) -> str:
    return repr(meta_text(value)) if isinstance(value, Proxy) else repr(value)


def with_programs(
    call: BoundSymbol, fn: Callable[[Trace], Trace], *, for_inputs: bool = False
) -> BoundSymbol:
    """``call`` with ``fn`` applied to its subprograms' programs, and outputs and effects to fit.

    The effects of the old subprograms stay as well. ``for_inputs`` means that subprograms change
    because the call's arguments did, and that the caller derives the call's outputs again.

    :raises TraceError: if a subprogram whose outputs are not the call's now returns other metadata.
    """
    made = map_programs(call, fn)
    if made is call:
        return call
    for old, new in zip(call.subprograms, made.subprograms, strict=True):
        if not new.returns and not (for_inputs and None not in new.operands):
            _check_same_outputs(made, old, new)
    made = made.replace(effects=joined_effects(call.effects, summed_effects(made)))
    values = returned(made)
    if values is None:
        return made
    found = leaves(values)

    def output(said: Any) -> Any:
        value = next(found)
        if isinstance(said, Proxy) and isinstance(value, Proxy) and not said.same_meta(value):
            return value.replace(name=said.name, tags=said.tags)
        return said

    return made.replace(outputs=map_tree(output, made.outputs))


def _check_same_outputs(call: BoundSymbol, old: Subprogram, new: Subprogram) -> None:
    before, after = (list(leaves(r.program.outputs)) for r in (old, new))
    same = len(before) == len(after) and all(map(_alike, before, after))
    if not same:
        raise TraceError(
            f"subprogram {new.name!r} of {call.symbol} now returns "
            f"({', '.join(map(_text, after))}), not ({', '.join(map(_text, before))}), "
            "which the operation relies on",
            source=call.source,
        )


# ------------------------------------------------------------------------------- effects


def summed_effects(call: BoundSymbol) -> Effects:
    """The effects of any number of runs of the subprograms of ``call`` on the call's arguments.

    A write through a view counts as a write to its base. A write to an input that the operation
    makes is a side effect, since the input may be a part of any argument.
    """
    total = Effects()
    for subprogram in call.subprograms:
        total = joined_effects(total, _effects(subprogram, len(call.flat_outs)))
    return total


def joined_effects(first: Effects, second: Effects) -> Effects:
    """The effects of a call that may have those of ``first``, of ``second`` or of both."""
    identical = {(a.output, a.kind, a.index): a for a in (*second.aliases, *first.aliases)}
    return Effects(
        tuple(sorted({*first.mutates, *second.mutates})),
        first.rebinds + tuple(r for r in second.rebinds if r not in first.rebinds),
        tuple(identical[k] for k in sorted(identical)),
        tuple(dict.fromkeys((*first.ordered, *second.ordered))),
    )


def _effects(subprogram: Subprogram, outputs: int) -> Effects:
    """The effects of a run of ``subprogram`` on its call's arguments, with ``outputs`` results."""
    program = subprogram.program
    storage = Storage.of(program)
    operands = {p.name: i for p, i in zip(program.inputs, subprogram.operands, strict=True)}
    mutated: set[str] = set()
    ordered: dict[str, None] = {}
    for call in program.calls:
        effects = call.effects
        mutated |= {r for i in effects.mutates for r in storage.roots_of(call.flat_args[i])}
        rebound = {r for i, _ in effects.rebinds for r in storage.roots_of(call.flat_args[i])}
        if not rebound.isdisjoint(operands):
            ordered["side_effect"] = None
        ordered.update(dict.fromkeys(effects.ordered))
    written = [operands[root] for root in operands if root in mutated]
    if None in written:
        ordered["side_effect"] = None
    return Effects(
        tuple(i for i in written if i is not None),
        aliases=tuple(_aliases(subprogram, storage, outputs)) if subprogram.returns else (),
        ordered=tuple(ordered),
    )


def _aliases(subprogram: Subprogram, storage: Storage, outputs: int) -> Iterable[Alias]:
    program = subprogram.program
    operands = {p.name: i for p, i in zip(program.inputs, subprogram.operands, strict=True)}
    returned = [p for p in leaves(program.outputs) if isinstance(p, Proxy)][:outputs]
    first: dict[str, int] = {}
    for i, p in enumerate(returned):
        for root in storage.roots_of(p):
            operand = operands.get(root)
            if operand is not None:
                yield Alias(i, "arg", operand)
            elif first.setdefault(root, i) != i:
                yield Alias(i, "out", first[root])
            elif root in storage.internal:
                yield Alias(i, "internal")


# ------------------------------------------------------------------------------- inlining


def inline_subprogram(
    call: BoundSymbol, subprogram: Subprogram, namer: Namer, tags: TagRegistry
) -> tuple[tuple[BoundSymbol, ...], dict[str, Any]]:
    """The calls of ``subprogram`` to replace ``call``, and the substitutes of the call's outputs.

    For an operation that only calls its one subprogram, once. The calls keep their own source,
    context and tags; they also get the call's tags that propagate into bodies, and the call as
    parent.

    :raises TraceError: if an input that the subprogram reads is no argument of the call.
    """
    scope = _Inlining(call, subprogram, namer, tags)
    calls = tuple(map(scope.call, subprogram.program.calls))
    return calls, scope.values()


class _Inlining:
    """The values outside of a subprogram for the values inside."""

    def __init__(
        self, call: BoundSymbol, subprogram: Subprogram, namer: Namer, tags: TagRegistry
    ) -> None:
        self.outer, self.subprogram, self.namer, self.tags = call, subprogram, namer, tags
        self.inherited = tags.propagated(call.tags, "into_body")
        self.env: dict[str, Any] = {}
        for p, index in zip(subprogram.program.inputs, subprogram.operands, strict=True):
            if index is not None:
                self.env[p.name] = call.flat_args[index]
        results = zip(_first_outputs(call, subprogram), leaves(call.outputs), strict=True)
        self.results = [(a, b) for a, b in results if isinstance(b, Proxy)]
        self.outputs: dict[str, Proxy] = {}
        for inside, out in self.results:
            if isinstance(inside, Proxy) and inside.name not in self.env:
                self.outputs.setdefault(inside.name, out)

    def call(self, inner: BoundSymbol) -> BoundSymbol:
        moved = with_args(inner, self.use)
        rebinds = tuple(
            (i, p.replace(name=moved.flat_args[i].name)) for i, p in moved.effects.rebinds
        )
        made = moved.replace(
            outputs=map_tree(self.define, inner.outputs, Proxy),
            effects=replace(moved.effects, rebinds=rebinds),
            tags=self.tags.merge(self.inherited, inner.tags, self.outer.source),
            source=inner.source or self.outer.source,
            parent=self.outer.parent or self.outer.label,
        )
        before = [p.name for _, p in inner.effects.rebinds]
        self.env.update(zip(before, (p for _, p in rebinds), strict=True))
        return with_view_tags(made, self.tags)

    def use(self, inside: Proxy) -> Any:
        if inside.name not in self.env:
            raise TraceError(
                f"subprogram {self.subprogram.name!r} of {self.outer.symbol} cannot take its "
                f"place: its input {inside.name!r} is no argument",
                source=self.outer.source,
            )
        return self.env[inside.name]

    def define(self, inside: Proxy) -> Proxy:
        """The value outside for an output of a call in the subprogram."""
        if inside.name not in self.env:
            out = self.outputs.get(inside.name)
            if out is None:
                self.env[inside.name] = inside.replace(name=self.namer(inside.name))
            else:
                merged = self.tags.merge(out.tags, inside.tags, self.outer.source)
                self.env[inside.name] = inside.replace(name=out.name, tags=merged)
        found: Proxy = self.env[inside.name]
        return found

    def values(self) -> dict[str, Any]:
        """The outputs of the call that are another value, or have other metadata, once inlined."""
        found = {}
        for inside, out in self.results:
            value = self.env[inside.name] if isinstance(inside, Proxy) else inside
            if value != out:
                found[out.name] = value
        return found
