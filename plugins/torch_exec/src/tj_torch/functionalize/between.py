"""Returned views on which other results depend, as logits that are views and the loss of them.

In eager the gradient of the result goes through the view, which hooks, ``retain_grad()`` and
``torch.autograd.grad(result, view)`` see. So such a view is not made again outside: the functional
program returns it, and who differentiates the program sees to it that autograd makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tj_core.extend import (
    BoundSymbol,
    Place,
    Proxy,
    Tag,
    TensorProxy,
    ViewStep,
    dependent_values,
    requires_grad,
)

from tj_torch.functionalize.forms import maker
from tj_torch.functionalize.functionalize import Functionalized
from tj_torch.functionalize.objects import Unsuitable, cuts_gradients

__all__ = ["RETURNED_VIEW", "views_between"]

RETURNED_VIEW = Tag(
    "RETURNED_VIEW",
    "a view that is returned and that other results depend on: PyTorch's autograd has to see it "
    "made, between what it views and what is made of it",
    carriers=frozenset({"proxy"}),
    into_body=False,
)


def views_between(made: Functionalized, returned: Iterable[str]) -> dict[str, Proxy]:
    """The values of the objects, views all, that stand between other results and what they view.

    ``returned`` are the objects that the program returns.

    :raises Unsuitable: if autograd would have to see more of the program than such views.
    """
    if not made.differentiates:
        return {}
    found: dict[str, Proxy] = {}
    written = [n for n in made.given if any(w.visible for w in made.writes.get(n, {}).values())]
    results = _Results(made, returned, written)
    for name in dict.fromkeys((*returned, *written)):
        place = made.objects.places[name]
        value = made.latest(place)
        if name in made.members or value is None or not requires_grad(value):
            continue
        if (place.path or name in written) and results.depend_on(value, place.root):
            found |= _views(made, place)
    return found


class _Results:
    """The values of results that are no views, by their names; what is written of arguments too."""

    def __init__(
        self, made: Functionalized, returned: Iterable[str], written: Iterable[str]
    ) -> None:
        self.calls = made.editor.calls
        roots = {made.objects.places[name].root for name in returned} - made.given
        values = {root: made.latest(Place(root)) for root in (*roots, *written)}
        self.names = {root: p.name for root, p in values.items() if p and requires_grad(p)}

    def depend_on(self, value: Proxy, root: str) -> bool:
        """Whether a gradient flows to ``value``, of ``root``, from one that is of another root."""
        reached = dependent_values(self.calls, [value.name], requires_grad)
        return any(name in reached for other, name in self.names.items() if other != root)


def _views(made: Functionalized, place: Place) -> dict[str, Proxy]:
    """All views on the way from a root to ``place``, with their values."""
    if place.root in made.writes or not place.path:
        raise Unsuitable("a result depends on what is written, which the caller has too")
    if place.root in made.members or made.objects.bumps.get(place.root):
        raise Unsuitable("a result depends on a returned view of memory that is shared or changed")
    found: dict[str, Proxy] = {}
    for i, step in enumerate(place.path):
        if cuts_gradients(step) or step.call not in made.views:
            raise Unsuitable(f"a result depends on what {step.call.symbol} makes of its argument")
        for output, p in _made(step.call):
            made_here = ViewStep(step.call, step.argument, output)
            value = made.value(Place(place.root, (*place.path[:i], made_here)))
            _check_arguments(made, value)
            found[p.name] = value
    return found


def _made(call: BoundSymbol) -> Iterator[tuple[int, Proxy]]:
    return ((i, p) for i, p in enumerate(call.flat_outs) if isinstance(p, TensorProxy))


def _check_arguments(made: Functionalized, value: Proxy) -> None:
    """See that the call that makes ``value`` takes one tensor, and what the program is given."""
    call = made.editor.calls[maker(made.editor.calls, value)]
    others = [p for p in call.flat_args if not isinstance(p, TensorProxy)]
    if len(call.flat_args) - len(others) > 1 or any(p.name not in made.given for p in others):
        raise Unsuitable(f"a result depends on a returned view by {call.symbol}, of computed size")
