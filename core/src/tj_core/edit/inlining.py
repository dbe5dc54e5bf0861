"""Inlining: replace a call by the calls of its body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.edit.bodies import with_args
from tj_core.edit.tag_propagation import with_view_tags
from tj_core.errors import TraceError
from tj_core.ir.names import formal_index
from tj_core.ir.proxy import Proxy
from tj_core.ir.tree import leaves, map_tree

if TYPE_CHECKING:
    from tj_core.ir.tags import TagRegistry
    from tj_core.ir.trace import Body, BoundSymbol

__all__ = ["Inlined", "can_inline", "inline"]


@dataclass(frozen=True, slots=True)
class Inlined:
    """The calls of an inlined body, and the substitutes of outputs that the calls do not define.

    A substitute inherits the output's tags, see `tj_core.edit.tag_propagation.TagInheritance`.
    """

    calls: tuple[BoundSymbol, ...]
    values: Mapping[str, Any]


def can_inline(call: BoundSymbol) -> bool:
    """Decide if ``call`` can be replaced by its body.

    It cannot if the call mutates. Nor can it if one value of the body has two different metadata
    outside: the body of ``detach`` returns its argument, which may require grad, so the argument is
    no substitute for the result.
    """
    if call.body is None or call.effects.mutates or call.effects.rebinds:
        return False
    values = {f.name: call.flat_args[formal_index(f.name)] for f in call.body.inputs}
    return all(
        values.setdefault(formal.name, out).same_meta(out)
        for formal, out in _output_pairs(call, call.body)
        if isinstance(formal, Proxy)
    )


def _output_pairs(call: BoundSymbol, body: Body) -> list[tuple[Any, Proxy]]:
    pairs = zip(leaves(body.outputs), leaves(call.outputs), strict=True)
    return [(formal, out) for formal, out in pairs if isinstance(out, Proxy)]


def inline(call: BoundSymbol, namer: Callable[[str], str], tags: TagRegistry) -> Inlined:
    """The calls of ``call``'s body under real names, with tags, source, parent and context.

    ``namer`` gives free names. An output that the body passes through (an argument, an output
    twice, or a constant) is in `Inlined.values`.

    :raises TraceError: if the call has no body that can replace it (`can_inline`).
    """
    if call.body is None or not can_inline(call):
        raise TraceError(f"call {call.label!r} cannot be replaced by its body", source=call.source)
    scope = _Scope(call, call.body, namer, tags)
    return Inlined(tuple(map(scope.call, call.body.calls)), scope.values())


class _Scope:
    """The real values behind one body's formal names."""

    def __init__(
        self, call: BoundSymbol, body: Body, namer: Callable[[str], str], tags: TagRegistry
    ) -> None:
        self.outer, self.namer, self.tags = call, namer, tags
        self.inherited = tags.propagated(call.tags, "into_body")
        self.base = call.label if call.flat_outs else call.symbol.path.rpartition(".")[2]
        self.env = {f.name: call.flat_args[formal_index(f.name)] for f in body.inputs}
        self.outputs: dict[str, Proxy] = {}
        self.passed: dict[str, Any] = {}
        for formal, out in _output_pairs(call, body):
            self.output(formal, out)

    def output(self, formal: Any, out: Proxy) -> None:
        """Note that ``formal``, a value of the body or a constant, is the call's output ``out``."""
        if not isinstance(formal, Proxy) or formal.name in self.env:
            self.passed[out.name] = formal
            return
        first = self.outputs.setdefault(formal.name, out)
        if first is not out:
            merged = self.tags.merge(first.tags, out.tags, self.outer.source)
            self.outputs[formal.name] = first.replace(tags=merged)
            self.passed[out.name] = formal

    def values(self) -> dict[str, Any]:
        """The outputs that the inlined calls do not define, with their values, after all calls."""
        return {
            name: self.env[formal.name] if isinstance(formal, Proxy) else formal
            for name, formal in self.passed.items()
        }

    def call(self, inner: BoundSymbol) -> BoundSymbol:
        moved = with_args(inner, self.use)
        made = with_view_tags(
            moved.replace(
                outputs=map_tree(self.define, inner.outputs, Proxy),
                tags=self.tags.merge(self.inherited, inner.tags, self.outer.source),
                source=self.outer.source,
                parent=self.outer.parent or self.outer.label,
                context=inner.context.over(self.outer.context),
            ),
            self.tags,
        )
        for formal, real in zip(inner.flat_outs, made.flat_outs, strict=True):
            self.env[formal.name] = real
        return made

    def use(self, formal: Proxy) -> Proxy:
        return self.env[formal.name]

    def define(self, formal: Proxy) -> Proxy:
        """The real value for an output of a call in the body."""
        if formal.name not in self.env:
            out = self.outputs.get(formal.name)
            if out is None:
                real = formal.replace(name=self.namer(f"{self.base}{formal.name}"))
            else:
                merged = self.tags.merge(out.tags, formal.tags, self.outer.source)
                real = out if merged == out.tags else out.replace(tags=merged)
            return real
        return self.env[formal.name]
