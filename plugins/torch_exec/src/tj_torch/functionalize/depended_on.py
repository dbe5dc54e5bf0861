"""Returned views and written arguments on which other results depend.

In eager, the gradient of such a result flows through the view or the written argument, and hooks,
``retain_grad()`` and ``torch.autograd.grad(result, view)`` show this. So the epilogue must not make
the view again, nor write the argument. The functional program returns both, and the plugin that
differentiates it makes the view and writes the argument as nodes of autograd.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tj_core.extend import (
    BoundSymbol,
    NumberProxy,
    Proxy,
    Symbol,
    Tag,
    TagSet,
    TensorProxy,
    dependent_values,
    requires_grad,
    substitution,
)
from tj_core.internal import Place, ViewStep

from tj_torch.functionalize.forms import maker, on_behalf
from tj_torch.functionalize.objects import Unsuitable, cuts_gradients

if TYPE_CHECKING:
    from tj_torch.functionalize.functionalize import Functionalized

__all__ = ["COPIED_BACK", "CROSSING", "RETURNED_VIEW", "DependedOn", "copied_back", "depended_on"]

RETURNED_VIEW = Tag(
    "RETURNED_VIEW",
    "a returned view or a written argument that other results depend on: it has to be made or "
    "written as a node of PyTorch's autograd",
    carriers=frozenset({"proxy"}),
    into_body=False,
)

CROSSING = Tag(
    "CROSSING",
    "a value of a tensor subclass passed between nodes of PyTorch's autograd: it is wrapped there, "
    "though no call takes it whole",
    carriers=frozenset({"proxy"}),
    into_body=False,
    to_replacement=False,
)

COPIED_BACK = Symbol("tj", "copied_back")
"""``copied_back(value, name, count)``: the argument ``name`` with its new ``value``, written
``count`` times. Run as a node of autograd, it writes the argument."""


@dataclass
class DependedOn:
    """Returned objects that other results depend on.

    ``views`` are values of views by object, ``written`` the names of arguments.
    """

    views: dict[str, Proxy] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)


def depended_on(made: Functionalized, returned: Iterable[str], *, cut: bool) -> DependedOn:
    """Find returned views and written arguments of ``made`` that other results depend on.

    ``returned`` are the objects that the program returns. With ``cut``, the plugin that
    differentiates the program can split it to let autograd write in the middle.

    :raises Unsuitable: if autograd would have to see other calls of the program.
    """
    found = DependedOn()
    if not made.differentiates:
        return found
    written = [n for n in made.given if any(w.visible for w in made.writes.get(n, {}).values())]
    results = _Results(made, returned, written)
    for name in dict.fromkeys((*returned, *written)):
        place = made.objects.places[name]
        value = made.latest(place)
        if name in made.members or value is None or not requires_grad(value):
            continue
        if not (place.path or name in written) or not results.depend_on(value, place.root):
            continue
        if name in written and not place.path and cut and _is_simple(made, name):
            found.written.append(name)
        else:
            found.views |= _views(made, place)
    return found


def _is_simple(made: Functionalized, name: str) -> bool:
    """Test for an argument that is only written, and shares no memory."""
    changed = {p.name for call in made.views for p in _rebound(call)}
    same = {n for n, first in made.objects.names.items() if first == name}
    # One version counter: autograd counts the write where it happens.
    alone = not made.members and made.objects.counters(name) == {name}
    return alone and name not in made.autograd_changes and same.isdisjoint(changed)


def _rebound(call: BoundSymbol) -> Iterator[Proxy]:
    return (call.flat_args[i] for i, _ in call.effects.rebinds)


def copied_back(made: Functionalized, name: str) -> Proxy:
    """The argument ``name`` after the write; later readers take this value.

    :raises Unsuitable: if no call makes the value.
    """
    value, calls = made.value(Place(name)), made.editor.calls
    if value.name in made.given:
        raise Unsuitable("a result depends on an argument that becomes another one")
    at = maker(calls, value)
    context = calls[at].context.with_("grad", True)
    args = (value, name, made.objects.bumps.get(name, 0))
    call = made.expanded(on_behalf(calls[at], COPIED_BACK, args, (), context), [name])
    (copied,) = call.flat_outs
    twins = made.twins.get(value.name, ())
    moved = substitution(dict.fromkeys((value.name, *(p.name for p in twins)), copied))
    for place in range(at + 1, len(calls)):
        made.editor.replace(place, calls[place].map_proxies(moved))
    made.editor.insert(at + 1, call)
    made.editor.inherit(copied, TagSet([RETURNED_VIEW.name]))
    made.keep(Place(name), copied)
    return copied


class _Results:
    """Values of results that are no views, and of written arguments, by root."""

    def __init__(
        self, made: Functionalized, returned: Iterable[str], written: Iterable[str]
    ) -> None:
        self.calls = made.editor.calls
        roots = {made.objects.places[name].root for name in returned} - made.given
        values = {root: made.latest(Place(root)) for root in (*roots, *written)}
        self.names = {root: p.name for root, p in values.items() if p and requires_grad(p)}

    def depend_on(self, value: Proxy, root: str) -> bool:
        """Test if a gradient flows to ``value``, of ``root``, from a result of another root."""
        reached = dependent_values(self.calls, [value.name], requires_grad)
        return any(name in reached for other, name in self.names.items() if other != root)


def _views(made: Functionalized, place: Place) -> dict[str, Proxy]:
    """Views on the path from a root to ``place``, with their values.

    :raises Unsuitable: if the root is written or shared, or a view depends on computed sizes.
    """
    if place.root in made.writes or not place.path:
        raise Unsuitable("a result depends on written memory that the caller sees")
    if place.root in made.members or made.objects.bumps.get(place.root):
        raise Unsuitable("a result depends on a returned view of memory that is shared or changed")
    found: dict[str, Proxy] = {}
    for i, step in enumerate(place.path):
        if cuts_gradients(step) or step.call not in made.views:
            raise Unsuitable(f"a result depends on what {step.call.symbol} makes of its argument")
        for output, p in _made(step.call):
            made_here = ViewStep(step.call, step.argument, output)
            value = made.value(Place(place.root, (*place.path[:i], made_here)))
            _take_inputs(made, value)
            found[p.name] = value
    return found


def _made(call: BoundSymbol) -> Iterator[tuple[int, Proxy]]:
    return ((i, p) for i, p in enumerate(call.flat_outs) if isinstance(p, TensorProxy))


def _take_inputs(made: Functionalized, value: Proxy) -> None:
    """Let the call that makes ``value`` take one tensor, and else inputs of the program.

    A size that the program reads is an input, too, if one has the same symbols.

    :raises Unsuitable: if the call takes another tensor, or a value that is no input.
    """
    at = maker(made.editor.calls, value)
    call = made.editor.calls[at]
    others = [p for p in call.flat_args if not isinstance(p, TensorProxy)]
    read = {p.name: _input(made, p) for p in others if p.name not in made.given}
    if len(call.flat_args) - len(others) > 1 or None in read.values():
        raise Unsuitable(f"a result depends on a returned view by {call.symbol}, of computed size")
    if read:
        made.editor.replace(at, call.map_proxies(substitution(read)))


def _input(made: Functionalized, number: Proxy) -> Proxy | None:
    """The input of the program that has the symbols of ``number``; None if there is none."""
    if not isinstance(number, NumberProxy) or not number.expr:
        return None
    numbers = (p for p in made.trace.inputs if isinstance(p, NumberProxy))
    return next((p for p in numbers if (p.kind, p.expr) == (number.kind, number.expr)), None)
