"""Common subexpression elimination that respects effects, identity, gradients and tags.

A call takes an earlier one's results if nobody can tell: both compute the same from the same values
in the same context, touch no ordered resource, and no memory involved is ever written; the program
does not return results of both, which would become one object; no gradient flows through them (it
would be summed in another order), unless gradients are calls of the program already; what autograd
saves of the one is not what the program returns of the other, for the caller to write to; no call
takes both that may look whether they are one object; and their tags can be merged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tj_core.analysis.alias import AliasFacts, alias_facts
from tj_core.edit.editor import TraceEditor
from tj_core.errors import TagError
from tj_core.ir.proxy import Proxy, requires_grad
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Constant
from tj_core.ir.tags import TagRegistry, TagSet
from tj_core.ir.trace import Body, BoundSymbol, PassRecord, Trace
from tj_core.ir.tree import leaves, map_tree
from tj_core.text.metadata import meta_text

__all__ = ["cse"]


def cse(trace: Trace, tags: TagRegistry) -> Trace:
    """``trace`` without calls that compute what an earlier one did; the same object if none."""
    editor = TraceEditor(trace, tags)
    run = _Run(trace, tags, alias_facts(trace), editor)
    for call in trace.calls:
        run.step(call)
    if not editor.changes:
        return trace
    run.tag_elders()
    return editor.done(PassRecord("cse"))


@dataclass
class _Run:
    """One run: ``first`` has the calls that stay, by what they compute but for their bodies."""

    trace: Trace
    tags: TagRegistry
    facts: AliasFacts
    editor: TraceEditor
    first: dict[Any, list[BoundSymbol]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    merged: dict[str, TagSet] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.escaping = set(self.facts.escaping)
        self.gradients_done = self.trace.stage >= Stage.JOINT
        self.objects = dict(self.facts.objects)
        found = (x for x in leaves(self.trace.outputs) if isinstance(x, Proxy))
        self.returned = {self.objects[p.name] for p in found}
        calls = self.trace.calls
        self.saved = set() if self.gradients_done else {self.facts.roots[n] for n in _saved(calls)}
        taken = ([self.objects[p.name] for p in c.flat_args] for c in calls if _is_curious(c))
        self.curious = [set(objects) for objects in taken]

    def step(self, call: BoundSymbol) -> None:
        """Keep ``call``, over what its arguments are now, unless an earlier one serves for it."""
        call = self.editor.moved(call)
        if call.parent in self.labels:
            call = call.replace(parent=self.labels[call.parent])
        if not self.mergeable(call):
            return self.editor.keep(call)
        elders = self.first.setdefault(_key(call), [])
        # A backward call has its constants in its body: two with other bodies compute other things.
        elder = next((e for e in elders if _same_body(e.body, call.body)), None)
        if elder is None:
            elders.append(call)
        if elder is None or not self.merge(call, elder):
            self.editor.keep(call)

    def tag_elders(self) -> None:
        """Give the calls that serve for others the tags of those."""
        for i, call in enumerate(self.editor.calls):
            if call.label in self.merged:
                self.editor.replace(i, call.replace(tags=self.merged[call.label]))

    def mergeable(self, call: BoundSymbol) -> bool:
        """Whether nobody could tell two such calls from one, whatever else the program does."""
        if not call.effects.removable or call.regions or not call.flat_outs:
            return False
        if not self.gradients_done and any(map(requires_grad, call.flat_outs)):
            return False
        return not any(map(self.facts.is_mutated, (*call.flat_args, *call.flat_outs)))

    def merge(self, call: BoundSymbol, elder: BoundSymbol) -> bool:
        """Let ``elder``'s results stand for ``call``'s, if that may be."""
        pairs = list(zip(call.flat_outs, elder.flat_outs, strict=True))
        if any(self.told_apart(a, b) for a, b in pairs) or not self.agree(call, elder):
            return False
        both = self.tags.merge(self.merged.get(elder.label, elder.tags), call.tags, call.source)
        if both != elder.tags:
            self.merged[elder.label] = both
        for mine, others in pairs:
            self.stand_in(mine, others)
            self.editor.substitute(mine, others, call.source)
        self.labels[call.label] = elder.label
        self.editor.changed(call, f"computed by {elder.label}")
        return True

    def stand_in(self, mine: Proxy, others: Proxy) -> None:
        """Note what is true of ``others``, now that it stands for ``mine`` too."""
        one, other = self.objects[mine.name], self.objects[others.name]
        if one in self.returned:
            self.returned.add(other)
        self.objects = {n: other if o == one else o for n, o in self.objects.items()}
        for taken in self.curious:
            if one in taken:
                taken.add(other)
        one, other = self.facts.roots[mine.name], self.facts.roots[others.name]
        for known in (self.escaping, self.saved):
            if one in known:
                known.add(other)

    def told_apart(self, a: Proxy, b: Proxy) -> bool:
        """Whether somebody can tell that ``a`` and ``b`` became one object, or one memory."""
        if self.objects[a.name] == self.objects[b.name]:
            return False
        if {self.objects[a.name], self.objects[b.name]} <= self.returned:
            return True
        if any({self.objects[a.name], self.objects[b.name]} <= taken for taken in self.curious):
            return True
        one, other = self.facts.roots[a.name], self.facts.roots[b.name]
        if one == other:  # two views; what the program returns may tell which one it is a view of
            return one in self.escaping
        return (one in self.escaping and self.is_held(other)) or (
            other in self.escaping and self.is_held(one)
        )

    def is_held(self, root: str) -> bool:
        """Whether the memory is somebody's when the program has returned."""
        return root in self.escaping or root in self.saved

    def agree(self, call: BoundSymbol, elder: BoundSymbol) -> bool:
        """Whether the two may be one as far as their tags go."""
        try:
            self.tags.merge(self.merged.get(elder.label, elder.tags), call.tags, call.source)
            for mine, others in zip(call.flat_outs, elder.flat_outs, strict=True):
                self.tags.merge(self.editor.inherited(others), mine.tags, call.source)
        except TagError:
            return False
        return True


def _saved(calls: tuple[BoundSymbol, ...]) -> Iterator[str]:
    """The values that PyTorch's autograd may keep for the backward pass.

    Their memory is the caller's to write only if the program returned it.
    """
    for call in calls:
        after = (p for _, p in call.effects.rebinds)
        values = (*call.flat_args, *call.flat_outs, *after)
        if any(map(requires_grad, values)):
            yield from (p.name for p in values)


def _is_curious(call: BoundSymbol) -> bool:
    """Whether ``call`` may do something else if two of its arguments are one object.

    Attention in PyTorch does (``query is key``). A call of a single operator cannot: it is not
    written in Python. Where one writes, its functional form copies an object once.
    """
    if len({p.name for p in call.flat_args}) < 2:
        return False
    if call.symbol.functional:
        return True
    if call.body is None:
        return "side_effect" in call.effects.ordered
    return len(call.body.calls) != 1


def _key(call: BoundSymbol) -> Any:
    """What two calls have in common that compute the same, beside their bodies."""
    outputs = map_tree(meta_text, call.outputs, Proxy)
    return (
        call.symbol,
        _frozen(call.args),
        _frozen(call.kwargs),
        _frozen(call.context.items),
        call.executor,
        _frozen(outputs),
    )


def _same_body(one: Body | None, other: Body | None) -> bool:
    """Whether two bodies compute the same."""
    if one is other or one is None or other is None or len(one.calls) != len(other.calls):
        return one is other
    return _frozen((one.outputs, one.updates)) == _frozen((other.outputs, other.updates)) and all(
        _key(a) == _key(b)
        and [p.name for p in a.flat_outs] == [p.name for p in b.flat_outs]
        and _same_body(a.body, b.body)
        for a, b in zip(one.calls, other.calls, strict=True)
    )


def _frozen(tree: Any) -> Any:
    """``tree`` as something hashable that is equal only where it means the same."""
    kind = type(tree)
    if isinstance(tree, Proxy):
        return tree.name
    if isinstance(tree, tuple | list):
        return (kind, *map(_frozen, tree))
    if isinstance(tree, Mapping):
        return (kind, *((k, _frozen(v)) for k, v in tree.items()))
    if isinstance(tree, slice):
        return (kind, _frozen((tree.start, tree.stop, tree.step)))
    if isinstance(tree, Constant):
        return (kind, tree.text, None if tree.named else id(tree.value))
    if kind is float:
        return (kind, struct.pack("d", tree))  # 0.0 == -0.0
    if kind is complex:
        return (kind, struct.pack("dd", tree.real, tree.imag))
    return (kind, tree)  # True == 1
