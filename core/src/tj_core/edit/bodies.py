"""Bodies under formal names: make them, and keep them consistent when arguments change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tj_core.errors import TraceError
from tj_core.ir.names import formal_index, formal_input, formal_value
from tj_core.ir.proxy import Proxy
from tj_core.ir.substitution import substituted, substitution
from tj_core.ir.symbol import PLAIN_CONTEXT
from tj_core.ir.tags import NO_TAGS
from tj_core.ir.trace import Body, BoundSymbol, Subprogram, Trace
from tj_core.ir.tree import leaves, map_tree

if TYPE_CHECKING:
    from tj_core.ir.effects import Effects

__all__ = [
    "body_program",
    "canonical_body",
    "closed_body",
    "formals",
    "passed_on",
    "with_args",
    "wrapped_body",
]


def formals(call: BoundSymbol) -> dict[str, Proxy]:
    """The inputs of ``call``'s body, by the names of the call's arguments."""
    found: dict[str, Proxy] = {}
    for index, arg in enumerate(call.flat_args):
        if arg.name not in found:
            found[arg.name] = arg.replace(name=formal_input(index), tags=NO_TAGS)
    return found


def wrapped_body(call: BoundSymbol) -> Body:
    """A body that consists of ``call`` alone, for a call that replaces it."""
    inputs = formals(call)
    outs = {p.name: p.replace(name=formal_value(i)) for i, p in enumerate(call.defined())}
    known = {**outs, **inputs}
    rebinds = tuple((i, p.replace(name=inputs[p.name].name)) for i, p in call.effects.rebinds)
    inner = call.replace(
        source=None,
        parent=None,
        context=PLAIN_CONTEXT,
        effects=replace(call.effects, rebinds=rebinds),
    ).map_proxies(lambda p: known[p.name])
    return Body(tuple(inputs.values()), (inner,), inner.outputs)


def body_program(call: BoundSymbol, trace: Trace) -> Trace | None:
    """The body of a call of ``trace`` as a program in the call's context; None without a body.

    The program's inputs are the call's arguments, each value once.
    """
    body = call.body
    if body is None:
        return None
    calls = (inner.replace(context=inner.context.over(call.context)) for inner in body.calls)
    return trace.replace(
        inputs=body.inputs,
        calls=tuple(calls),
        outputs=body.outputs,
        context=call.context,
        history=(),
    )


def canonical_body(body: Body) -> Body:
    """``body`` with the values its calls define renamed to ``_0, _1, ...`` in order.

    :raises TraceError: if a call uses an undefined value.
    """
    names = _defined_names(body.calls)
    if all(old == new for old, new in names.items()):
        return body
    return _renamed(body, names, {p.name: p for p in body.inputs})


def closed_body(inputs: Sequence[Proxy], calls: tuple[BoundSymbol, ...], outputs: Any) -> Body:
    """``calls`` of a program as a body over ``inputs``, the values that they read from outside.

    All names are replaced at once, so that a value named ``a0`` or ``_1`` in the program cannot
    clash with a formal name.

    :raises TraceError: if a call uses a value that is neither an input nor defined.
    """
    formal = {p.name: p.replace(name=formal_input(i), tags=NO_TAGS) for i, p in enumerate(inputs)}
    body = Body(tuple(inputs), calls, outputs)
    return _renamed(body, _defined_names(calls), formal)


def _defined_names(calls: Iterable[BoundSymbol]) -> dict[str, str]:
    """Formal names of the values that ``calls`` define, by their present names."""
    names: dict[str, str] = {}
    for call in calls:
        for p in call.defined():
            names.setdefault(p.name, formal_value(len(names)))
    return names


def _renamed(body: Body, names: Mapping[str, str], inputs: Mapping[str, Proxy]) -> Body:
    """``body`` with new ``names`` for the calls' outputs and new ``inputs``, all at once.

    :raises TraceError: if the body uses an undefined value.
    """

    def rename(proxy: Proxy) -> Proxy:
        if (given := inputs.get(proxy.name)) is not None:
            return given
        if proxy.name not in names:
            raise TraceError(f"a body uses {proxy.name!r}, which nothing in it defines")
        name = names[proxy.name]
        return proxy if name == proxy.name else proxy.replace(name=name)

    return Body(
        tuple(map(rename, body.inputs)),
        tuple(call.map_proxies(rename) for call in body.calls),
        map_tree(rename, body.outputs, Proxy),
        tuple((i, map_tree(rename, v, Proxy)) for i, v in body.updates),
    )


def with_args(call: BoundSymbol, fn: Callable[[Proxy], Any]) -> BoundSymbol:
    """``call`` with ``fn`` applied to its argument proxies (itself if none changes).

    ``fn`` may map two values to one, or a value to a constant; indices of effects and the body's
    inputs follow. The caller must see to it that metadata still fits.
    """
    moved = call.map_args(fn)
    if moved is call:
        return call
    as_many = len(call.flat_args) == len(moved.flat_args)  # so that none became a constant
    if as_many and _partition(call) == _partition(moved):
        return moved
    now = passed_on(call, moved)
    places = {i: j for i, (j, _) in now.items()}
    moved = _rewired(moved, places)
    return moved.replace(
        effects=_reindexed(call.effects, places),
        body=None if call.body is None else _rebased(call.body, call, moved, now),
    )


def passed_on(old: BoundSymbol, new: BoundSymbol) -> dict[int, tuple[int, Proxy]]:
    """For each argument proxy of ``old``, by flat index: index and proxy at its place in ``new``.

    The two calls differ only in leaves of their arguments; proxies that became constants are left
    out.
    """
    found: dict[int, tuple[int, Proxy]] = {}
    i = j = -1
    pairs = zip(leaves((old.args, old.kwargs)), leaves((new.args, new.kwargs)), strict=True)
    for before, after in pairs:
        i += isinstance(before, Proxy)
        j += isinstance(after, Proxy)
        if isinstance(before, Proxy) and isinstance(after, Proxy):
            found[i] = j, after
    return found


def _rewired(call: BoundSymbol, now: Mapping[int, int]) -> BoundSymbol:
    """``call`` with its subprograms' operands renumbered: ``now`` maps old to new flat indices."""
    if not call.subprograms:
        return call

    def moved(subprogram: Subprogram) -> Subprogram:
        operands = tuple(None if i is None else now.get(i) for i in subprogram.operands)
        return (
            subprogram
            if operands == subprogram.operands
            else replace(subprogram, operands=operands)
        )

    args = map_tree(moved, call.args, Subprogram)
    return call.replace(args=args, kwargs=map_tree(moved, call.kwargs, Subprogram))


def _partition(call: BoundSymbol) -> list[int]:
    """For each argument proxy, the flat index of the first one with the same name."""
    first: dict[str, int] = {}
    return [first.setdefault(p.name, i) for i, p in enumerate(call.flat_args)]


def _reindexed(effects: Effects, now: Mapping[int, int]) -> Effects:
    """``effects`` with renumbered arguments, without those on arguments that became constants."""
    return replace(
        effects,
        mutates=tuple(now[i] for i in effects.mutates if i in now),
        rebinds=tuple((now[i], p) for i, p in effects.rebinds if i in now),
        aliases=tuple(
            a if a.kind != "arg" else replace(a, index=now[a.index])
            for a in effects.aliases
            if a.kind != "arg" or a.index in now
        ),
        marks=tuple((mark, now[i], n) for mark, i, n in effects.marks if i in now),
    )


def _rebased(
    body: Body, old: BoundSymbol, new: BoundSymbol, now: Mapping[int, tuple[int, Proxy]]
) -> Body:
    """The ``body`` of ``old`` adapted to ``new``, which has other, or fewer, argument proxies."""
    inputs = formals(new)
    constants = _constants(old, new)
    env: dict[str, Any] = {}
    for formal in body.inputs:
        index = formal_index(formal.name)
        env[formal.name] = inputs[now[index][1].name] if index in now else constants[index]
    # `env` maps inputs only: the values that calls define keep their names.
    current = substitution(env)
    return Body(
        tuple(inputs.values()),
        tuple(with_args(inner, current) for inner in body.calls),
        substituted(body.outputs, env),
        tuple((now[i][0], substituted(v, env)) for i, v in body.updates if i in now),
    )


def _constants(old: BoundSymbol, new: BoundSymbol) -> dict[int, Any]:
    """The constants at the places of former argument proxies, by flat index in ``old``."""
    found: dict[int, Any] = {}
    index = -1
    pairs = zip(leaves((old.args, old.kwargs)), leaves((new.args, new.kwargs)), strict=True)
    for before, after in pairs:
        index += isinstance(before, Proxy)
        if isinstance(before, Proxy) and not isinstance(after, Proxy):
            found[index] = after
    return found
