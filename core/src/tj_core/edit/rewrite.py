"""Rewriting by rules: each call is offered to the rule of its symbol.

A rule looks at one call and returns None (the call stays the same object) or a `Replacement`. The
rewriter puts the replacement in place, at top level and inside bodies; carries over tags by their
declared policies, names, source, parent and context; expands calls again whose inputs changed; and
records the plugin and the rule of each change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tj_core.contract.expansion import Expand, bind_outputs
from tj_core.edit.bodies import canonical_body
from tj_core.edit.edited_bodies import with_edited_body
from tj_core.edit.editor import TraceEditor
from tj_core.edit.inlining import can_inline, inline
from tj_core.edit.reexpand import note_new_values, reexpand
from tj_core.edit.subprograms import inline_subprogram, with_programs
from tj_core.edit.tag_propagation import with_view_tags
from tj_core.errors import TraceError
from tj_core.ir.proxy import Proxy
from tj_core.ir.substitution import substituted
from tj_core.ir.symbol import PLAIN_CONTEXT, Context, Symbol
from tj_core.ir.tags import NO_TAGS, TagRegistry, TagSet
from tj_core.ir.trace import Body, BoundSymbol, Change, PassRecord, Trace
from tj_core.ir.tree import map_tree

if TYPE_CHECKING:
    from tj_core.contract.rules import RuleTable
    from tj_core.ir.names import Namer

__all__ = ["CallEditor", "Replacement", "RewriteRule", "reexpand", "rewrite"]


@dataclass(frozen=True, slots=True)
class Replacement:
    """The calls that replace a call, and a map from old outputs to new values.

    An old output that ``values`` does not name must be defined by ``calls`` under its own name.
    ``decomposed`` means that ``calls`` are the call's body, and have the tags that propagate into
    bodies; if False, tags propagate to the calls that define the old outputs.
    """

    calls: tuple[BoundSymbol, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    decomposed: bool = False


class CallEditor:
    """The rewriter's services for a rule, for the one call offered to it."""

    __slots__ = ("_call", "_expand", "_namer", "_tags", "trace")

    def __init__(
        self,
        call: BoundSymbol,
        namer: Namer,
        expand: RuleTable[Expand],
        tags: TagRegistry,
        trace: Trace,
    ) -> None:
        self._call, self._namer, self._expand, self._tags = call, namer, expand, tags
        self.trace = trace
        """The program, subprogram or body of the call, as it was before the first rule."""

    def fresh(self, wish: str) -> str:
        """A free name like ``wish``."""
        return self._namer(wish)

    def call(
        self,
        symbol: Symbol | str,
        *args: Any,
        outputs: tuple[str, ...] = (),
        context: Any = None,
        **kwargs: Any,
    ) -> BoundSymbol:
        """A new call, expanded, in the old call's context unless ``context`` is given.

        Its first outputs have the names ``outputs``, further ones free names.

        :raises RuleMissingError: if there is no rule to expand ``symbol``.
        """
        name = Symbol.parse(symbol) if isinstance(symbol, str) else symbol
        made = BoundSymbol(
            name,
            args,
            tuple(kwargs.items()),
            context=self._call.context if context is None else context,
            source=self._call.source,
        )
        expanded = self._expand.require(made).value(made)
        base = self._call.label
        return bind_outputs(
            made, expanded, lambda i: outputs[i] if i < len(outputs) else self.fresh(base)
        )

    def of(self, call: BoundSymbol) -> CallEditor:
        """An editor for ``call`` instead of the old call, such as one in another context."""
        return CallEditor(call, self._namer, self._expand, self._tags, self.trace)

    def can_inline(self) -> bool:
        """Decide if the old call can be replaced by its body."""
        return can_inline(self._call)

    def inline_subprogram(self, tags: TagSet | None = None) -> Replacement:
        """A replacement of the old call by the calls of its only subprogram.

        The calls get those of ``tags``, by default the old call's, that propagate into bodies.

        :raises ValueError: if the call does not have exactly one subprogram.
        :raises TraceError: if an input of the subprogram is no argument of the call.
        """
        (subprogram,) = self._call.subprograms
        call = self._call if tags is None else self._call.replace(tags=tags)
        calls, values = inline_subprogram(call, subprogram, self._namer, self._tags)
        return Replacement(calls, values, decomposed=True)

    def inline(self) -> Replacement:
        """A replacement of the old call by its body.

        :raises TraceError: if the call has no body that can replace it (`can_inline`).
        """
        inlined = inline(self._call, self._namer, self._tags)
        return Replacement(inlined.calls, inlined.values, decomposed=True)


RewriteRule = Callable[[BoundSymbol, CallEditor], "Replacement | None"]


def rewrite(
    trace: Trace,
    rules: RuleTable[RewriteRule],
    *,
    expand: RuleTable[Expand],
    tags: TagRegistry,
    name: str,
    plugin: str = "core",
    into_bodies: bool = True,
    into_subprograms: bool = True,
) -> Trace:
    """``trace`` with ``rules`` applied once to every call; the same object if none fires.

    Calls inside subprograms are offered like those at top level, unless an executor owns the call.
    Calls inside bodies are offered too, under the context and the tags they would have in their
    call's place, unless a rule took the call itself, it mutates, or an executor owns it; see
    `tj_core.edit.edited_bodies`. A body or subprogram that many calls share is offered, and edited,
    once.

    :raises TraceError: if a rule leaves an output of its call undefined.
    """
    scope = _Scope(TraceEditor(trace, tags))
    _Run(rules, expand, tags, into_bodies, into_subprograms).calls(scope)
    return scope.editor.done(PassRecord(name, plugin)) if scope.editor.changes else trace


@dataclass(frozen=True, slots=True)
class _Scope:
    """The top level, a subprogram, or one body, as a program under edit.

    For a body, ``context`` and ``inherited`` (tags) come from the call around it; the contexts and
    tags of the calls inside are relative to them.
    """

    editor: TraceEditor
    context: Context = PLAIN_CONTEXT
    inherited: TagSet = NO_TAGS
    nested: bool = False


@dataclass(frozen=True, slots=True)
class _Edited:
    """An edited body (None if unchanged); the reference to the original keeps its id in use."""

    original: Body
    body: Body | None
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class _EditedSubprogram:
    """A subprogram's edited program; the reference to the original keeps its id in use."""

    original: Trace
    program: Trace
    changes: tuple[Change, ...]


@dataclass
class _Run:
    """One run of the rewriter, with the results for shared bodies and subprograms by id."""

    rules: RuleTable[RewriteRule]
    expand: RuleTable[Expand]
    tags: TagRegistry
    into_bodies: bool
    into_subprograms: bool
    bodies: dict[tuple[int, Context, TagSet], _Edited] = field(default_factory=dict)
    programs: dict[int, _EditedSubprogram] = field(default_factory=dict)

    def calls(self, scope: _Scope) -> None:
        """Edit the calls of ``scope``."""
        editor = scope.editor
        for old in editor.trace.calls:
            call = reexpand(old, editor.values, self.expand, self.tags, scope.context)
            if call is not old:  # a replacement may define the expanded call's outputs, unchanged
                editor.values.update(_changed(old, call))
            replaced = self.replaced(call, scope)
            if replaced is not None:
                editor.append(*replaced)
                continue
            made = self.descend(call, scope)
            editor.append(made)
            note_new_values(old, made, editor.values)

    def replaced(self, call: BoundSymbol, scope: _Scope) -> tuple[BoundSymbol, ...] | None:
        """The calls by which a rule replaces ``call``, or None."""
        rule = self.rules.of(call)
        if rule is None:
            return None
        offered = self.offered(call, scope)
        of = scope.editor
        editor = CallEditor(offered, of.fresh, self.expand, self.tags, of.trace)
        new = rule.value(offered, editor)
        if new is None or (not new.values and len(new.calls) == 1 and new.calls[0] is offered):
            return None
        scope.editor.changed(call, rule.key, rule.plugin, rule.origin)
        return _Placing(call, offered, new, scope, self.tags).place()

    def offered(self, call: BoundSymbol, scope: _Scope) -> BoundSymbol:
        """``call`` as shown to a rule: with the context and tags that it would have inlined."""
        if not scope.nested:
            return call
        context = call.context.over(scope.context)
        tags = self.tags.merge(scope.inherited, call.tags, call.source)
        if context == call.context and tags == call.tags:
            return call
        return call.replace(context=context, tags=tags)

    def descend(self, call: BoundSymbol, scope: _Scope) -> BoundSymbol:
        """``call`` with the rules applied in its subprograms and its body; itself if none fires."""
        if self.into_subprograms and call.subprograms and not call.executor:
            call = with_programs(call, lambda program: self.subprogram(program, call, scope))
        body = call.body
        if not self.into_bodies or body is None or call.effects.mutates or call.executor:
            return call
        context = call.context.over(scope.context)
        inherited = self.tags.propagated(call.tags, "into_body")
        inherited = self.tags.merge(scope.inherited, inherited, call.source)
        edited = self.edited(body, context, inherited)
        if edited.body is None:
            return call
        inside = (replace(c, call=f"{call.label}.{c.call}") for c in edited.changes)
        scope.editor.changes += inside
        return with_edited_body(call, edited.body)

    def subprogram(self, program: Trace, call: BoundSymbol, scope: _Scope) -> Trace:
        """``program`` edited; several calls with one program share the result, too."""
        if id(program) not in self.programs:
            editor = scope.editor.of_subprogram(program)
            self.calls(_Scope(editor))
            edited = editor.done() if editor.changes else program
            self.programs[id(program)] = _EditedSubprogram(program, edited, tuple(editor.changes))
        found = self.programs[id(program)]
        place = f"{call.label}.{program.name}"
        scope.editor.changes += (replace(c, call=f"{place}.{c.call}") for c in found.changes)
        return found.program

    def edited(self, body: Body, context: Context, inherited: TagSet) -> _Edited:
        key = id(body), context, inherited
        if key not in self.bodies:
            self.bodies[key] = self.body(body, context, inherited)
        return self.bodies[key]

    def body(self, body: Body, context: Context, inherited: TagSet) -> _Edited:
        editor = TraceEditor.of_body(body, self.tags)
        self.calls(_Scope(editor, context, inherited, nested=True))
        if not editor.changes:
            return _Edited(body, None, ())
        return _Edited(body, canonical_body(editor.body()), tuple(editor.changes))


@dataclass
class _Placing:
    """The placement of one replacement."""

    old: BoundSymbol
    offered: BoundSymbol
    new: Replacement
    scope: _Scope
    tags: TagRegistry

    def place(self) -> tuple[BoundSymbol, ...]:
        """The replacement's calls with inherited tags and source; substitutes go to the scope."""
        defined = {p.name for call in self.new.calls for p in call.flat_outs}
        inherited = self.inherited(defined)
        calls = tuple(self.inherit(call, inherited) for call in self.new.calls)
        final = {p.name: p for call in calls for p in call.flat_outs}
        for p in self.old.flat_outs:
            value = substituted(substituted(p, self.new.values), final)
            if value != p:
                self.scope.editor.values[p.name] = value
        for call in calls:
            self.scope.editor.values.update({p.name: p for _, p in call.effects.rebinds})
        return calls

    def inherited(self, defined: set[str]) -> dict[str, TagSet]:
        """For each value that the new calls define, the tags of the old outputs that it replaces.

        Values defined earlier inherit their tags at the end of the pass.
        """
        inherited: dict[str, TagSet] = {}
        known = {p.name for p in self.old.flat_args}
        for p in self.old.flat_outs:
            value = substituted(p, self.new.values)
            if not isinstance(value, Proxy):
                continue
            if value.name == p.name and p.name not in defined | known:
                raise TraceError(
                    f"a rule for {self.old.symbol} leaves output {p.name!r} undefined",
                    source=self.old.source,
                )
            tags = p.tags
            if not self.new.decomposed:
                tags = self.tags.propagated(tags, "to_replacement")
            if value.name in defined:
                mine = inherited.get(value.name, NO_TAGS)
                inherited[value.name] = self.tags.merge(mine, tags, self.old.source)
            else:
                self.scope.editor.inherit(value, tags, self.old.source)
        return inherited

    def inherit(self, call: BoundSymbol, inherited: Mapping[str, TagSet]) -> BoundSymbol:
        """``call`` with the source, the parent and the propagating tags of the replaced call."""
        if call is self.offered:
            return self.old
        old = self.old

        def tagged(p: Proxy) -> Proxy:
            merged = self.tags.merge(inherited.get(p.name, NO_TAGS), p.tags, old.source)
            return p if merged == p.tags else p.replace(tags=merged)

        parent = call.parent or old.parent or old.label
        made = call.replace(
            outputs=map_tree(tagged, call.outputs, Proxy),
            tags=self.call_tags(call, inherited),
            source=call.source or old.source,
            # In a body names are formal; inlining sets the parent of the body's calls.
            parent=None if self.scope.nested else parent,
            context=call.context.beyond(self.scope.context) if self.scope.nested else call.context,
        )
        return with_view_tags(made, self.tags)

    def call_tags(self, call: BoundSymbol, inherited: Mapping[str, TagSet]) -> TagSet:
        replaces = not inherited or any(p.name in inherited for p in call.flat_outs)
        if self.new.decomposed or not replaces:
            return call.tags
        passed = self.tags.propagated(self.old.tags, "to_replacement")
        return self.tags.merge(passed, call.tags, self.old.source)


def _changed(old: BoundSymbol, new: BoundSymbol) -> dict[str, Any]:
    """The outputs of ``old`` that differ in ``new``."""
    pairs = zip(old.flat_outs, new.flat_outs, strict=True)
    return {before.name: after for before, after in pairs if before != after}
