"""Alias analysis: which values share memory, and whose memory is written.

One pure function from the effects of calls to facts. Nobody stores or rewrites its results: a pass
that changed a trace asks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tj_core.edit.substitution import substituted
from tj_core.ir.proxy import Proxy
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.ir.tree import leaves

__all__ = ["AliasFacts", "alias_facts", "makes_views", "same_objects", "storage_roots"]


@dataclass(frozen=True, slots=True)
class AliasFacts:
    """What the effects of a trace's calls come to.

    ``roots`` has, for every value, the first value in the same memory, ``objects`` the first that
    is the same object. ``mutated`` are the roots whose memory is written, or whose metadata is
    changed, anywhere in the program, as far as that can be known; ``escaping`` those that the
    program returns.
    """

    roots: Mapping[str, str]
    objects: Mapping[str, str]
    mutated: frozenset[str]
    escaping: frozenset[str]

    def is_mutated(self, value: Proxy) -> bool:
        """Whether the memory of ``value`` may be written somewhere in the program."""
        return self.roots[value.name] in self.mutated


def alias_facts(trace: Trace) -> AliasFacts:
    """The facts of ``trace``.

    Inputs may overlap each other in ways that a trace does not show: if one is written, all are. A
    call of which nothing is known but that it has side effects may write all it takes and returns.
    """
    roots = {p.name: p.name for p in trace.inputs}
    objects = dict(roots)
    mutated: set[str] = set()
    for call in trace.calls:
        objects |= _defined(call, objects, identical=True)
        roots |= _defined(call, roots)
        mutated.update(roots[p.name] for p in _mutated(call))
    inputs = {p.name for p in trace.inputs}
    if not mutated.isdisjoint(inputs):
        mutated |= inputs
    returned = (x for x in leaves(trace.outputs) if isinstance(x, Proxy))
    return AliasFacts(
        roots, objects, frozenset(mutated), frozenset(roots[p.name] for p in returned)
    )


def storage_roots(calls: Iterable[BoundSymbol]) -> dict[str, str]:
    """For every value that ``calls`` return, the first value in the same memory."""
    roots: dict[str, str] = {}
    for call in calls:
        roots |= _defined(call, roots)
    return roots


def same_objects(call: BoundSymbol) -> dict[str, Proxy]:
    """The outputs of ``call`` that are an argument, or another output, by name, and these."""
    values = {"arg": call.flat_args, "out": call.flat_outs}
    found: dict[str, Proxy] = {}
    for alias in call.effects.aliases:
        if alias.identical and alias.kind in values:
            given = values[alias.kind][alias.index]
            found[call.flat_outs[alias.output].name] = substituted(given, found)
    return found


def makes_views(call: BoundSymbol) -> bool:
    """Whether all that ``call`` returns shares memory with its arguments."""
    views = {a.output for a in call.effects.aliases if a.kind == "arg"}
    return bool(call.flat_outs) and len(views) == len(call.flat_outs)


def _defined(
    call: BoundSymbol, known: Mapping[str, str], *, identical: bool = False
) -> dict[str, str]:
    """The roots of the values that ``call`` defines; the objects they are with ``identical``."""
    found: dict[str, str] = {}
    aliases = [a for a in call.effects.aliases if a.identical or not identical]
    bases = {a.output: a for a in aliases if a.kind != "internal"}
    for i, p in enumerate(call.flat_outs):
        alias = bases.get(i)
        if p.name in known:  # an argument under its own name
            continue
        if alias is None:
            found[p.name] = p.name
        elif alias.kind == "arg":
            base = call.flat_args[alias.index].name
            found[p.name] = known.get(base, base)
        else:
            base = call.flat_outs[alias.index].name
            found[p.name] = found.get(base) or known.get(base, base)
    return found


def _mutated(call: BoundSymbol) -> Iterator[Proxy]:
    effects = call.effects
    for index in (*effects.mutates, *(i for i, _ in effects.rebinds)):
        yield call.flat_args[index]
    if "side_effect" in effects.ordered and call.body is None:
        yield from call.flat_args
        yield from call.flat_outs
