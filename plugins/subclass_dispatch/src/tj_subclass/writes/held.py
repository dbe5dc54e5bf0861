"""Memory of the parts of tensors of subclasses, which views do not name.

A write to a tensor of a subclass changes the dense tensors in it, and all other values that hold
these: a tensor of a subclass that was made of them, or one of them by itself. The bodies of calls
say which values hold the same memory. The functional form follows views alone; where written memory
is also held in another way, and used, the program runs as it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tj_core.extend import (
    BoundSymbol,
    Constant,
    Proxy,
    TensorProxy,
    Trace,
    formal_index,
    is_subclass,
    leaves,
    requires_grad,
)
from tj_torch.extend import Unsuitable
from tj_torch.internal import Objects, reads_data

from tj_subclass.expansion.flattening import FLATTEN, UNFLATTEN, dense_proxies

__all__ = ["check_held"]

Memory: TypeAlias = frozenset[str]
"""The names of memory that a dense tensor may be in."""

Parts: TypeAlias = tuple[Memory, ...]
"""The memory of each dense tensor that a value consists of."""


def check_held(trace: Trace) -> None:
    """Check that only views hold the memory that ``trace`` writes in tensors of subclasses.

    :raises Unsuitable: if another value that is used holds some of it.
    """
    if not any(call.on_subclass for call in trace.calls):
        return
    held = _held(trace)
    objects = _objects(trace)
    wrapped = {p.name for p in _values(trace) if is_subclass(p)}
    for index, call in enumerate(trace.calls):
        for i in dict.fromkeys(call.effects.mutates):
            written = call.flat_args[i]
            for p in _beside(written, trace, held, objects):
                # Views of one dense tensor are what the functional form follows.
                if wrapped.isdisjoint((p.name, written.name)) and _same_root(p, written, objects):
                    continue
                if _counts(p, trace, index):
                    reason = f"{written.name}, which is written, and {p.name} hold the same memory"
                    raise Unsuitable(reason, call.source)


def _objects(trace: Trace) -> Objects:
    found = Objects()
    for p in trace.inputs:
        found.begin(p)
    for call in trace.calls:
        found.note(call)
    return found


def _values(trace: Trace) -> Iterator[Proxy]:
    yield from trace.inputs
    for call in trace.calls:
        yield from call.flat_outs


def _beside(
    written: Proxy, trace: Trace, held: Mapping[str, Parts], objects: Objects
) -> Iterator[Proxy]:
    """Yield the values that share memory with ``written`` otherwise than as its whole views."""
    mine = held[written.name]
    if not _apart(mine):
        yield written
    everything = frozenset().union(*mine)
    for p in _values(trace):
        related = _same_root(p, written, objects)
        if (related and held[p.name] != mine) or (
            not related and any(not everything.isdisjoint(part) for part in held[p.name])
        ):
            yield p


def _apart(parts: Parts) -> bool:
    """True if each of ``parts`` is in one memory that no other part is in."""
    return all(len(part) == 1 for part in parts) and len(set(parts)) == len(parts)


def _same_root(p: Proxy, other: Proxy, objects: Objects) -> bool:
    """True if two values are views of one root, along known paths."""
    mine, its = (objects.places.get(objects.object_of(x)) for x in (p, other))
    return mine is not None and its is not None and mine.root == its.root


def _counts(p: Proxy, trace: Trace, index: int) -> bool:
    """True if ``p`` is used from the call at ``index`` on, or outside of the program."""
    later = (q for call in trace.calls[index:] for q in call.flat_args)
    returned = (x for x in leaves(trace.outputs) if isinstance(x, Proxy))
    # The caller has the inputs after the program, too.
    users = (*trace.inputs, *later, *returned)
    # Autograd may have saved what requires a gradient, and read it in the backward.
    return requires_grad(p) or any(q.name == p.name for q in users)


# ---------------------------------------------------------------------------- what values hold


def _held(trace: Trace) -> dict[str, Parts]:
    """Map each value of ``trace`` to its parts."""
    found: dict[str, Parts] = {}
    for p in trace.inputs:
        found[p.name] = _new(p, p.name)
    _add(trace.calls, found, "")
    return found


def _add(calls: Iterable[BoundSymbol], known: dict[str, Parts], prefix: str) -> None:
    """Add the outputs of ``calls`` to ``known``; names of new memory begin with ``prefix``."""
    for call in calls:
        given = [known.get(p.name) or _new(p, prefix + p.name) for p in call.flat_args]
        made = _made(call, given, prefix)
        for p, parts in zip(call.flat_outs, made, strict=True):
            known.setdefault(p.name, parts)


def _made(call: BoundSymbol, given: Sequence[Parts], prefix: str) -> list[Parts]:
    """Parts of the outputs of ``call``."""
    outs = call.flat_outs
    if call.symbol == FLATTEN:
        return [(part,) for part in given[0]]
    if call.symbol == UNFLATTEN:
        dense = iter(given)
        parts = [
            frozenset([f"{prefix}{outs[0].name}.constant{i}"])
            if isinstance(x, Constant)
            else next(dense)[0]
            for i, x in enumerate(call.args[1])
        ]
        return [tuple(parts)]
    label = f"{prefix}{call.label}"
    if reads_data(call):
        return [given[0]]
    if not any(map(is_subclass, (*call.flat_args, *outs))):
        return _by_effects(call, given, prefix)
    # Nobody knows what it makes: it may be new memory, or any that the call is given.
    if call.body is None or call.subprograms:
        everything = frozenset([label]).union(*(part for parts in given for part in parts))
        return [tuple(everything for _ in _dense(p)) for p in outs]
    return _by_body(call, given, f"{label}.")


def _by_effects(call: BoundSymbol, given: Sequence[Parts], prefix: str) -> list[Parts]:
    """`_made` for a call on dense tensors."""
    found: list[Parts] = []
    for i, p in enumerate(call.flat_outs):
        memory: Memory = frozenset()
        for alias in call.effects.aliases:
            if alias.output == i and alias.kind == "arg":
                memory = memory.union(*given[alias.index])
            elif alias.output == i and alias.kind == "out" and alias.index < i:
                memory = memory.union(*found[alias.index])
        found.append((memory,) if memory else _new(p, prefix + p.name))
    return found


def _by_body(call: BoundSymbol, given: Sequence[Parts], prefix: str) -> list[Parts]:
    """`_made` for a call with a body."""
    assert call.body is not None
    inside = {p.name: given[formal_index(p.name)] for p in call.body.inputs}
    _add(call.body.calls, inside, prefix)
    found: list[Parts] = []
    for i, leaf in enumerate(_outputs(call)):
        same = next((a for a in call.effects.aliases if a.identical and a.output == i), None)
        if same is not None:  # it may be written, and what the body returns is its new value
            found.append(given[same.index] if same.kind == "arg" else found[same.index])
        elif isinstance(leaf, Proxy):
            found.append(inside[leaf.name])
        else:
            found.append(_new(call.flat_outs[i], f"{prefix}{i}"))
    return found


def _outputs(call: BoundSymbol) -> list[Any]:
    """Outputs of the body of ``call``, one for each proxy among the outputs of the call."""
    assert call.body is not None
    pairs = zip(leaves(call.body.outputs), leaves(call.outputs), strict=True)
    return [inner for inner, out in pairs if isinstance(out, Proxy)]


def _new(p: Proxy, name: str) -> Parts:
    """Parts of ``p`` in new memory."""
    parts = _dense(p)
    if not is_subclass(p):
        return (frozenset([name]),)
    return tuple(frozenset([f"{name}.{i}"]) for i in range(len(parts)))


def _dense(p: Proxy) -> list[Proxy]:
    return list(dense_proxies(p)) if isinstance(p, TensorProxy) else [p]
