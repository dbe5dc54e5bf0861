"""The form of calls and bodies: the verifier's checks of each call at any stage."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tj_core.edit.bodies import formals
from tj_core.errors import TjError
from tj_core.ir.proxy import Dim, Proxy, SymDim, TensorProxy
from tj_core.ir.sizes import normal_size, normal_stride
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Constant
from tj_core.ir.trace import Body, BoundSymbol, Subprogram
from tj_core.ir.tree import leaves
from tj_core.text.metadata import meta_text

if TYPE_CHECKING:
    from tj_core.ir.tags import TagRegistry

__all__ = ["Scope", "same_metadata", "settled", "used", "wrong_name"]

_LITERALS = (bool, int, str, bytes, type(None), type(...))


def same_metadata(formal: Proxy, actual: Proxy, *, mutated: bool = False) -> bool:
    """Compare a body's value with the call's, without ``requires_grad``, which bodies leave out.

    ``mutated``: the call writes the value into existing memory, whose strides and flags count.
    """
    if isinstance(formal, TensorProxy) and isinstance(actual, TensorProxy):
        formal = formal.replace(requires_grad=actual.requires_grad)
        if mutated:
            formal = formal.replace(strides=actual.strides, flags=actual.flags)
    return actual.same_meta(formal)


def settled(leaf: Any) -> Any:
    """``leaf`` with the sizes that guards have settled by now, maybe after it was made."""
    if not isinstance(leaf, TensorProxy) or not any(map(_may_settle, (*leaf.shape, *leaf.strides))):
        return leaf
    return leaf.map_symbols(_settled_size)


def _comparable(leaf: Proxy) -> Proxy:
    """``leaf``, settled, in a form in which equal sizes have one text, and equal strides, too."""
    leaf = settled(leaf)
    if not isinstance(leaf, TensorProxy):
        return leaf
    shape, strides = _normal(leaf.shape, normal_size), _normal(leaf.strides, normal_stride)
    return leaf.replace(shape=shape, strides=strides)


def _normal(dims: tuple[Dim, ...], normal: Callable[[str], Any]) -> tuple[Dim, ...]:
    return tuple(n if isinstance(n, int) else SymDim(repr(normal(n.name))) for n in dims)


def _may_settle(dim: Dim) -> bool:
    return isinstance(dim, SymDim) and dim.settled is not None


def _settled_size(dim: SymDim) -> Dim:
    if dim.settled is None:
        return dim
    known = dim.settled()
    if known is None:
        return dim
    return replace(dim, name=known) if isinstance(known, str) else known


def used(p: Proxy, env: Mapping[str, Proxy]) -> str | None:
    """The problem with a use of ``p`` where the values in ``env`` are defined, or None."""
    found = env.get(p.name)
    if found is None:
        return f"{p.name!r}, which nothing defines"
    # Identity first: nearly all are one object, and equality compares every field.
    if found is not p and found != p:
        return (
            f"{p.name!r} as {meta_text(p)!r} {{{p.tags}}}, "
            f"which is defined as {meta_text(found)!r} {{{found.tags}}}"
        )
    return None


def wrong_name(name: str, taken: set[str]) -> str | None:
    """Reason why a value at top level cannot have the name ``name``, or None."""
    if not name.isidentifier() or keyword.iskeyword(name):
        return "is no Python name"
    if re.fullmatch(r"_[\d_]*", name):
        return "is a name for values in bodies"
    return "is the name of a namespace or constant" if name in taken else None


@dataclass
class Scope:
    """The values defined so far, at top level or in a body, and the checks of the next call."""

    tags: TagRegistry
    env: dict[str, Proxy]
    taken: set[str] = field(default_factory=set)
    nested: bool = False

    def problem(self, call: BoundSymbol) -> str | None:
        """The first problem with the form of ``call``, or None. Defines the call's outputs."""
        return next(self.problems(call), None)

    def problems(self, call: BoundSymbol) -> Iterator[str]:
        """All problems with the form of ``call``. Defines the call's outputs."""
        for p in call.flat_args:
            if problem := used(p, self.env):
                yield f"uses {problem}"
        yield from _leaves(call)
        yield from _effects(call)
        args = {p.name: p for p in call.flat_args}
        for p in call.flat_outs:
            yield from self._define(p, args)
        self.env.update({p.name: p for _, p in call.effects.rebinds})
        yield from _tags(call, self.tags)
        yield from _body(call, self.tags)
        yield from _subprograms(call, self)

    def _define(self, p: Proxy, args: Mapping[str, Proxy]) -> Iterator[str]:
        if p.name in self.env:
            if args.get(p.name) != p:
                yield f"defines {p.name!r} again"
            return
        if self.nested and not re.fullmatch(r"_\d+", p.name):
            yield f"defines {p.name!r}, which is no name for a value in a body"
        elif not self.nested and (problem := wrong_name(p.name, self.taken)):
            yield f"defines {p.name!r}, which {problem}"
        self.env[p.name] = p


def _leaves(call: BoundSymbol) -> Iterator[str]:
    if any(isinstance(tree, dict | slice) for tree in _containers(call.outputs)):
        yield "has a dict or slice among its outputs"
    if not call.symbol.namespace.isidentifier():
        yield f"has namespace {call.symbol.namespace!r}, which is no Python name"
    for leaf in leaves((call.args, call.kwargs, call.outputs)):
        if not isinstance(leaf, Proxy | Constant | Subprogram) and not _literal(leaf):
            yield f"holds {leaf!r}, which no literal spells: it must be a Constant"


def _containers(tree: Any) -> Iterator[Any]:
    yield tree
    if isinstance(tree, tuple | list):
        for item in tree:
            yield from _containers(item)


def _literal(leaf: object) -> bool:
    if type(leaf) is float:
        return math.isfinite(leaf)
    if type(leaf) is complex:
        return math.isfinite(leaf.real) and math.isfinite(leaf.imag)
    return type(leaf) in _LITERALS


def _effects(call: BoundSymbol) -> Iterator[str]:
    args, outs = call.flat_args, len(call.flat_outs)
    effects = call.effects
    indices = [*effects.written]
    indices += [a.index for a in effects.aliases if a.kind == "arg"]
    if any(i >= len(args) for i in indices):
        yield f"has an effect on an argument beyond its {len(args)}"
        return
    if any(a.output >= outs or (a.kind == "out" and a.index >= outs) for a in effects.aliases):
        yield f"has an alias of an output beyond its {outs}"
    for i, p in effects.rebinds:
        if p.name != args[i].name:
            yield f"rebinds {args[i].name!r} under another name, {p.name!r}"


def _tags(call: BoundSymbol, tags: TagRegistry) -> Iterator[str]:
    try:
        for name in call.tags:
            tags.require(name, "call")
        for p in call.flat_outs:
            for name in p.tags:
                tags.require(name, "proxy")
    except TjError as error:
        yield error.message


def _body(call: BoundSymbol, tags: TagRegistry) -> Iterator[str]:
    body = call.body
    if body is None:
        return
    expected = tuple(formals(call).values())
    if body.inputs != expected and list(map(_comparable, body.inputs)) != list(
        map(_comparable, expected)
    ):
        yield (
            f"has a body with the inputs {_listed(body.inputs)}, "
            f"but its arguments need {_listed(expected)}"
        )
        return
    scope = Scope(tags, {p.name: p for p in body.inputs}, nested=True)
    for inner in body.calls:
        for problem in scope.problems(inner):
            yield f"has a body in which {inner.symbol} {problem}"
    yield from _body_outputs(call, body, scope.env)
    yield from _updates(call, body, scope.env)


def _listed(proxies: tuple[Proxy, ...]) -> str:
    return "(" + ", ".join(f"{p.name}: {meta_text(p)}" for p in proxies) + ")"


def _body_outputs(call: BoundSymbol, body: Body, env: Mapping[str, Proxy]) -> Iterator[str]:
    inside, outside = list(leaves(body.outputs)), list(leaves(call.outputs))
    if len(inside) != len(outside):
        yield "has a body with other outputs"
        return
    mutated = {
        call.flat_outs[a.output].name
        for a in call.effects.aliases
        if a.identical and a.kind == "arg" and a.index in call.effects.mutates
    }
    for mine, out in zip(inside, outside, strict=True):
        if isinstance(mine, Proxy):
            if problem := used(mine, env):
                yield f"has a body that returns {problem}"
            elif isinstance(out, Proxy) and not any(
                same_metadata(formal, actual, mutated=out.name in mutated)
                for formal, actual in ((mine, out), (_comparable(mine), _comparable(out)))
            ):
                yield f"has a body whose output is {meta_text(mine)!r}, not {meta_text(out)!r}"


def _updates(call: BoundSymbol, body: Body, env: Mapping[str, Proxy]) -> Iterator[str]:
    for index, value in body.updates:
        if index not in call.effects.mutates:
            yield f"has a body that updates argument {index}, which it does not mutate"
        if isinstance(value, Proxy) and (problem := used(value, env)):
            yield f"has a body that updates argument {index} with {problem}"


def _subprograms(call: BoundSymbol, scope: Scope) -> Iterator[str]:
    names = [subprogram.name for subprogram in call.subprograms]
    for subprogram in call.subprograms:
        if names.count(subprogram.name) > 1:
            yield f"has two subprograms called {subprogram.name!r}"
        if subprogram.name in scope.env:
            yield f"has a subprogram called {subprogram.name!r}, as a value is"
        elif problem := wrong_name(subprogram.name, scope.taken):
            yield f"has a subprogram called {subprogram.name!r}, which {problem}"
        for problem in (*_wiring(call, subprogram), *_subprogram(subprogram, scope)):
            yield f"has a subprogram {subprogram.name!r} {problem}"


def _wiring(call: BoundSymbol, subprogram: Subprogram) -> Iterator[str]:
    """Problems of the operands and results of ``subprogram`` as a subprogram of ``call``."""
    program, args = subprogram.program, call.flat_args
    if program.stage is not Stage.ACQUIRED:
        yield "with a stage of its own"
    if len(subprogram.operands) != len(program.inputs):
        yield f"with {len(subprogram.operands)} operands for {len(program.inputs)} inputs"
        return
    for p, index in zip(program.inputs, subprogram.operands, strict=True):
        if index is None:
            continue
        if index >= len(args):
            yield f"with an operand beyond the call's {len(args)} arguments"
        elif not same_metadata(p, args[index]):
            yield f"whose input {p.name!r} is {meta_text(p)!r}, not {meta_text(args[index])!r}"
    results = len(list(leaves(program.outputs)))
    if subprogram.returns and results < (wanted := len(list(leaves(call.outputs)))):
        yield f"that returns {results} of {wanted} values"


def _subprogram(subprogram: Subprogram, outer: Scope) -> Iterator[str]:
    program = subprogram.program
    scope = Scope(outer.tags, {}, outer.taken)
    for p in program.inputs:
        if problem := wrong_name(p.name, scope.taken):
            yield f"with an input called {p.name!r}, which {problem}"
        scope.env[p.name] = p
    if len(scope.env) != len(program.inputs):
        yield "with two inputs of one name"
    for call in program.calls:
        for problem in scope.problems(call):
            yield f"in which {call.symbol} {problem}"
    for leaf in leaves(program.outputs):
        if isinstance(leaf, Proxy) and (unknown := used(leaf, scope.env)):
            yield f"that returns {unknown}"
