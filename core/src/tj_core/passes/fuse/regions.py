"""Regions: replace groups of calls by single calls of their executor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tj_core.analysis.liveness import free_values, value_names
from tj_core.contract.fusion import FusionRegion
from tj_core.edit.bodies import closed_body
from tj_core.ir.names import formal_input
from tj_core.ir.proxy import Proxy, TensorProxy, size_hints
from tj_core.ir.symbol import PLAIN_CONTEXT, Constant, Symbol
from tj_core.ir.tags import CONSUMES, NO_TAGS, TagSet
from tj_core.ir.trace import Body, BoundSymbol, Notation
from tj_core.ir.tree import leaves, map_tree
from tj_core.passes.fuse.groups import Group, Owner, Unit
from tj_core.passes.fuse.keys import region_key
from tj_core.passes.fuse.overwriting import Overwritable, Writes

if TYPE_CHECKING:
    from tj_core.contract.executors import Executor
    from tj_core.passes.fuse.layouts import Layouts

__all__ = ["Facts", "FusedCall", "names_constants", "region_calls"]

Views: TypeAlias = "Mapping[str, tuple[Owner, BoundSymbol]]"
"""Views that regions of their owner can make again, by name of value."""


@dataclass(frozen=True, slots=True)
class FusedCall:
    """A region's call in the program, the region itself, and the labels of the calls in it.

    ``checks`` must run before the program's first call.
    """

    call: BoundSymbol
    region: FusionRegion
    members: tuple[str, ...] = ()
    checks: tuple[BoundSymbol, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts common to all regions of a program; ``executors`` are those that fuse, by name.

    ``fallback`` runs the checks. ``all_calls``: unused calls are kept.
    """

    language: Notation
    implementations: Mapping[Symbol, Callable[..., Any]]
    executors: Mapping[str, Executor]
    layouts: Layouts
    overwritable: Overwritable | None = None
    fallback: str | None = None
    all_calls: bool = False

    def writes(self, unit: int, owner: str, returned: Sequence[Proxy]) -> Writes:
        """The inputs that the region of ``owner`` at index ``unit`` may overwrite."""
        fusion = self.executors[owner].fusion
        if self.overwritable is None or fusion is None or fusion.overwrites is None:
            return Writes()
        may, consumes = fusion.overwrites, fusion.consumes
        return self.overwritable.writes(unit, returned, may, consumes=consumes)

    def may_choose(self, owner: str, p: Proxy) -> bool:
        """Decide if a region of ``owner`` that makes ``p`` may choose its strides."""
        fitting = isinstance(p, TensorProxy) and all(isinstance(n, int) for n in p.strides)
        return fitting and self.layouts.may_choose(self.executors[owner], p.name)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A planned region: all its calls, views included, and the values that it makes."""

    owner: Owner
    calls: tuple[BoundSymbol, ...]
    made: tuple[Proxy, ...]


def region_calls(
    units: Sequence[Unit], views: Views, outputs: Any, facts: Facts
) -> list[FusedCall | BoundSymbol]:
    """``units`` with a call for each group, without unused calls unless `Facts.all_calls`."""
    drafts = [_draft(u, views) if isinstance(u, Group) else u for u in units]
    running = _running(drafts, outputs, facts)
    if facts.overwritable is not None:
        facts = replace(facts, overwritable=facts.overwritable.among(running))
    needed, read = value_names(outputs), set[str]()
    found: list[FusedCall | BoundSymbol] = []
    for place, unit in reversed([*enumerate(drafts)]):
        if not running[place]:
            continue
        if isinstance(unit, BoundSymbol):
            found.append(unit)
            read.update(p.name for p in unit.flat_args)
        else:
            returned = tuple(p for p in unit.made if p.name in needed)
            writes = facts.writes(place, unit.owner.executor, returned)
            made = _fused_call(unit, returned, facts, read, writes)
            found.append(made)
            read.update(p.name for p in made.call.flat_args)
        needed |= read
    if facts.overwritable is not None:
        checks = [c for unit in found if isinstance(unit, FusedCall) for c in unit.checks]
        found += facts.overwritable.refusals.first(checks, facts.fallback)[::-1]
    return found[::-1]


def _running(
    drafts: Sequence[_Draft | BoundSymbol], outputs: Any, facts: Facts
) -> list[Sequence[BoundSymbol]]:
    """The calls of each draft; none if it is unused, such as a view that regions make again."""
    needed, found = value_names(outputs), list[Sequence[BoundSymbol]]()
    for unit in reversed(drafts):
        if isinstance(unit, BoundSymbol):
            calls, made = [unit], unit.flat_outs
            stays = facts.all_calls or not unit.effects.removable
        else:
            calls, made, stays = [*unit.calls], unit.made, False
        runs = stays or not needed.isdisjoint(p.name for p in made)
        found.append(calls if runs else ())
        if runs:
            needed |= {p.name for p in free_values(calls)}
    return found[::-1]


def _draft(group: Group, views: Views) -> _Draft:
    drawing = _Drawing(group.owner, views)
    for call in group.calls:
        drawing.add(call)
    made = tuple(p for call in group.calls for p in call.defined())
    return _Draft(group.owner, tuple(drawing.calls), made)


@dataclass
class _Drawing:
    """The calls of one region, collected with the views that calls read."""

    owner: Owner
    views: Views
    calls: list[BoundSymbol] = field(default_factory=list)
    there: set[str] = field(default_factory=set)

    def add(self, call: BoundSymbol) -> None:
        for chain in self.chains(call):
            self.calls.append(chain)
            self.there.update(p.name for p in chain.flat_outs)
        self.calls.append(call)

    def chains(self, call: BoundSymbol) -> Iterable[BoundSymbol]:
        """The missing views that ``call`` reads, bases first."""
        found: dict[str, BoundSymbol] = {}
        todo = [p.name for p in call.flat_args]
        while todo:
            name = todo.pop()
            owner, view = self.views.get(name, (None, None))
            if view is not None and owner == self.owner and name not in self.there:
                # Last again: in the reversed list, a base comes before all views of it.
                found.pop(view.label, None)
                found[view.label] = view
                todo += [p.name for p in view.flat_args]
        return list(found.values())[::-1]


def _fused_call(
    draft: _Draft,
    returned: tuple[Proxy, ...],
    facts: Facts,
    read: Collection[str],
    writes: Writes,
) -> FusedCall:
    """The region's call, which returns ``returned``; other calls of the program read ``read``."""
    inputs = free_values(draft.calls)
    calls = tuple(_plain(c, facts) for c in draft.calls)
    body = closed_body(inputs, calls, returned)
    constants = _constants(draft.calls)
    lifted = _lifted(body, constants, facts.language)
    hosted = {c.symbol: facts.implementations[c.symbol] for c in calls if _hosted(c, facts)}
    first = draft.calls[0]
    owner = draft.owner.executor
    flexible: frozenset[int] = frozenset()
    strides: dict[int, tuple[int, ...]] = {}
    if not size_hints(lifted.inputs):
        free = [i for i, p in enumerate(returned) if p.name not in read]
        flexible = frozenset(i for i in free if facts.may_choose(owner, returned[i]))
        chosen = ((i, facts.layouts.strides(owner, p.name)) for i, p in enumerate(inputs))
        strides = {i: found for i, found in chosen if found is not None}
    backward = any("BACKWARD" in c.tags for c in draft.calls)
    overwritten = _places(writes.inputs, returned, inputs)
    chosen_here = (*sorted(strides.items()), *([overwritten] if overwritten else []))
    key = region_key(lifted, owner, first.context.items, backward, sorted(flexible), *chosen_here)
    region = FusionRegion(
        lifted, key, facts.language, backward, flexible, strides, hosted, first.source, overwritten
    )
    tags = _common_tags(draft.calls, backward)
    call = BoundSymbol(
        Symbol(owner, region.name),
        (*inputs, *constants),
        outputs=returned,
        body=body,
        effects=region.effects,
        context=first.context,
        tags=tags.add(CONSUMES) if writes.consumes else tags,
        source=first.source,
        parent=first.parent or first.label,
        executor=owner,
    )
    checks = tuple(check.replace(context=first.context) for check in writes.checks)
    return FusedCall(call, region, tuple(c.label for c in draft.calls), checks)


def _places(
    overwritten: Mapping[str, str], returned: Sequence[Proxy], inputs: Sequence[Proxy]
) -> dict[int, int]:
    """``overwritten`` as indices: of new values in ``returned``, of old ones in ``inputs``."""
    places = {p.name: i for i, p in enumerate(inputs)}
    found = ((i, overwritten.get(p.name)) for i, p in enumerate(returned))
    return {i: places[name] for i, name in found if name is not None}


def _common_tags(calls: Iterable[BoundSymbol], backward: bool) -> TagSet:
    """The common tags of ``calls``, and BACKWARD for a region of a backward pass."""
    first, *others = (dict(call.tags) for call in calls)
    shared = {k: v for k, v in first.items() if all(k in t and t[k] == v for t in others)}
    tags = TagSet(shared)
    return tags.add("BACKWARD") if backward else tags


def _formal(p: Proxy, name: str) -> Proxy:
    return p.replace(name=name, tags=NO_TAGS)


def _plain(call: BoundSymbol, facts: Facts) -> BoundSymbol:
    """``call`` in the form for a body, which has the context and source of the region's call."""
    executor = call.executor if _hosted(call, facts) else None
    return call.replace(source=None, parent=None, context=PLAIN_CONTEXT, executor=executor)


def _hosted(call: BoundSymbol, facts: Facts) -> bool:
    return call.symbol in facts.implementations


def names_constants(call: BoundSymbol, language: Notation) -> bool:
    """Test if each constant of ``call`` has a spelling, or is a tensor that a region can take."""
    found = (language.observe(constant.value) for constant in _constants([call]))
    return all(isinstance(p, TensorProxy) and p.subclass is None for p in found)


def _constants(calls: Iterable[BoundSymbol]) -> tuple[Constant, ...]:
    """The constants of ``calls`` without a spelling in Python, each once."""
    trees = [(call.args, call.kwargs) for call in calls]
    found = (x for x in leaves(trees) if isinstance(x, Constant) and not x.named)
    return tuple({id(c.value): c for c in found}.values())


def _lifted(body: Body, constants: Sequence[Constant], language: Notation) -> Body:
    """``body`` with ``constants`` among its inputs, after the values."""
    if not constants:
        return body
    first = len(body.inputs)
    formal: dict[int, Proxy] = {}
    for i, constant in enumerate(constants, first):
        seen = language.observe(constant.value)
        assert isinstance(seen, TensorProxy)  # `names_constants` was checked while claiming
        formal[id(constant.value)] = _formal(seen, formal_input(i))

    def lifted(leaf: Any) -> Any:
        unnamed = isinstance(leaf, Constant) and not leaf.named
        return formal[id(leaf.value)] if unnamed else leaf

    calls = tuple(
        c.replace(args=map_tree(lifted, c.args), kwargs=map_tree(lifted, c.kwargs))
        for c in body.calls
    )
    return Body((*body.inputs, *formal.values()), calls, body.outputs)
