"""Common subexpression elimination that respects effects, identity, gradients and tags.

A call is replaced by an earlier one if the difference cannot be observed. All of these must hold:

- both compute the same from the same values in the same context, touch no ordered resource, and no
  memory involved is ever written;
- the program does not return results of both, which would become one object, and no call takes both
  that may test if they are one object;
- no gradient flows through them, since it would be summed in another order, unless gradients are
  calls of the program already;
- autograd does not save a result of one while the program returns a result of the other, which the
  caller may write; in a joint trace, it may come to save any value;
- their tags can be merged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.analysis.alias import AliasFacts, alias_facts
from tj_core.edit.editor import TraceEditor
from tj_core.errors import TagError
from tj_core.ir.proxy import Proxy, requires_grad
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Constant
from tj_core.ir.tags import OF_BACKWARD
from tj_core.ir.trace import Body, BoundSymbol, PassRecord, Trace
from tj_core.ir.tree import leaves, map_tree
from tj_core.text.metadata import meta_text

if TYPE_CHECKING:
    from tj_core.ir.tags import TagRegistry, TagSet

__all__ = ["cse"]


def cse(trace: Trace, tags: TagRegistry) -> Trace:
    """``trace`` without calls that repeat an earlier one; the same object if there are none."""
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
    """One run of the pass; ``first`` has the kept calls by `_key`."""

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
        self.joint = Stage.JOINT <= self.trace.stage < Stage.SPLIT
        self.objects = dict(self.facts.objects)
        found = (x for x in leaves(self.trace.outputs) if isinstance(x, Proxy))
        self.returned = {self.objects[p.name] for p in found}
        calls = self.trace.calls
        self.saved = set() if self.gradients_done else {self.facts.roots[n] for n in _saved(calls)}
        taken = ([self.objects[p.name] for p in c.flat_args] for c in calls if _is_curious(c))
        self.curious = [set(objects) for objects in taken]

    def step(self, call: BoundSymbol) -> None:
        """Keep ``call``, with its arguments substituted, or replace it by an earlier call."""
        call = self.editor.moved(call)
        if call.parent in self.labels:
            call = call.replace(parent=self.labels[call.parent])
        if not self.mergeable(call):
            return self.editor.append(call)
        elders = self.first.setdefault(_key(call), [])
        # A backward call has its constants in its body: with another body it computes otherwise.
        elder = next((e for e in elders if _same_body(e.body, call.body)), None)
        if elder is None:
            elders.append(call)
        if elder is None or not self.merge(call, elder):
            self.editor.append(call)

    def tag_elders(self) -> None:
        """Add to kept calls the tags of the calls that they replace."""
        for i, call in enumerate(self.editor.calls):
            if call.label in self.merged:
                self.editor.replace(i, call.replace(tags=self.merged[call.label]))

    def mergeable(self, call: BoundSymbol) -> bool:
        """Test for a call that may be merged as far as its own effects and gradients go."""
        if not call.effects.removable or call.subprograms or not call.flat_outs:
            return False
        if not self.gradients_done and any(map(requires_grad, call.flat_outs)):
            return False
        return not any(map(self.facts.is_mutated, (*call.flat_args, *call.flat_outs)))

    def merge(self, call: BoundSymbol, elder: BoundSymbol) -> bool:
        """Replace ``call``'s results by ``elder``'s; return False if this could be observed."""
        pairs = list(zip(call.flat_outs, elder.flat_outs, strict=True))
        if any(self.told_apart(a, b) for a, b in pairs) or not self.agree(call, elder):
            return False
        both = self.together(call, elder)
        if both != elder.tags:
            self.merged[elder.label] = both
        for mine, others in pairs:
            self.stand_in(mine, others)
            self.editor.substitute(mine, others, call.source)
        self.labels[call.label] = elder.label
        self.editor.changed(call, f"computed by {elder.label}")
        return True

    def together(self, call: BoundSymbol, elder: BoundSymbol) -> TagSet:
        """Tags of ``elder`` in the place of both; one of the forward pass stays in that.

        :raises TagError: if they exclude each other.
        """
        tags = call.tags if OF_BACKWARD in elder.tags else call.tags.without(OF_BACKWARD)
        return self.tags.merge(self.merged.get(elder.label, elder.tags), tags, call.source)

    def stand_in(self, mine: Proxy, others: Proxy) -> None:
        """Update the facts about ``others``, which now also replaces ``mine``."""
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
        """Decide if it can be observed that ``a`` and ``b`` become one object, or one memory."""
        if self.objects[a.name] == self.objects[b.name]:
            return False
        if {self.objects[a.name], self.objects[b.name]} <= self.returned:
            return True
        if any({self.objects[a.name], self.objects[b.name]} <= taken for taken in self.curious):
            return True
        one, other = self.facts.roots[a.name], self.facts.roots[b.name]
        if one == other:  # two views; a returned view may show its base
            return one in self.escaping
        return (one in self.escaping and self.is_held(other)) or (
            other in self.escaping and self.is_held(one)
        )

    def is_held(self, root: str) -> bool:
        """Test for memory that the caller or autograd holds after the program has returned."""
        return self.joint or root in self.escaping or root in self.saved

    def agree(self, call: BoundSymbol, elder: BoundSymbol) -> bool:
        """Test if the tags of the two calls, and of their outputs, can be merged."""
        try:
            self.together(call, elder)
            for mine, others in zip(call.flat_outs, elder.flat_outs, strict=True):
                self.tags.merge(self.editor.inherited(others), mine.tags, call.source)
        except TagError:
            return False
        return True


def _saved(calls: tuple[BoundSymbol, ...]) -> Iterator[str]:
    """The values that PyTorch's autograd may save for the backward pass.

    The caller may write their memory only if the program returned it.
    """
    for call in calls:
        after = (p for _, p in call.effects.rebinds)
        values = (*call.flat_args, *call.flat_outs, *after)
        if any(map(requires_grad, values)):
            yield from (p.name for p in values)


def _is_curious(call: BoundSymbol) -> bool:
    """Test for a call that may behave differently if two of its arguments are one object.

    Multi-head attention in PyTorch does (``query is key``). A call of a single operator cannot,
    since operators do not see Python objects; but the functional form of a mutating one copies each
    object once.
    """
    if len({p.name for p in call.flat_args}) < 2:
        return False
    if call.symbol.functional:
        return True
    if call.body is None:
        return "side_effect" in call.effects.ordered
    return len(call.body.calls) != 1


def _key(call: BoundSymbol) -> Any:
    """A key that is equal for calls that compute the same, apart from their bodies."""
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
    """Compare two bodies, nested ones included."""
    if one is other or one is None or other is None or len(one.calls) != len(other.calls):
        return one is other
    return _frozen((one.outputs, one.updates)) == _frozen((other.outputs, other.updates)) and all(
        _key(a) == _key(b)
        and [p.name for p in a.flat_outs] == [p.name for p in b.flat_outs]
        and _same_body(a.body, b.body)
        for a, b in zip(one.calls, other.calls, strict=True)
    )


def _frozen(tree: Any) -> Any:
    """A hashable form of ``tree``, equal only for trees with the same meaning."""
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
