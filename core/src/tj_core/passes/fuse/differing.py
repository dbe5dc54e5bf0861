"""Views that equal parts of a program take of different places: one token after the other, say.

A region makes the views that it reads again. Parts that compute the same on ``x[0]``, ``x[1]`` and
so on would be as many regions, each compiled. They are one region if the views are made before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol

__all__ = ["differing_views"]


def differing_views(
    parts: Sequence[Sequence[BoundSymbol]],
    views: Mapping[str, BoundSymbol],
    token: Callable[[BoundSymbol], str],
) -> list[BoundSymbol]:
    """Calls in ``views`` that keep equal ``parts`` of a group from being one region.

    :param views: the calls that make views, by name of value.
    :param token: a text that is equal for calls that differ in names alone.
    """
    alike: dict[tuple[str, ...], list[Sequence[BoundSymbol]]] = defaultdict(list)
    for part in parts if len(parts) > 1 else ():
        alike[tuple(map(token, part))].append(part)
    found: dict[int, BoundSymbol] = {}
    for group in alike.values():
        if len(group) > 1:
            comparison = _Comparison(group, views, token, found)
            for calls in zip(*group, strict=True):
                comparison.arguments(calls)
    return list(found.values())


class _Comparison:
    """A comparison of the views that ``parts`` read; those that differ are added to ``found``."""

    def __init__(
        self,
        parts: Sequence[Sequence[BoundSymbol]],
        views: Mapping[str, BoundSymbol],
        token: Callable[[BoundSymbol], str],
        found: dict[int, BoundSymbol],
    ) -> None:
        self.made = [{p.name for call in part for p in call.defined()} for part in parts]
        self.views, self.token, self.found = views, token, found

    def arguments(self, calls: Sequence[BoundSymbol]) -> None:
        """Compare the arguments of ``calls``, one of each part, in turn."""
        for names in zip(*([p.name for p in call.flat_args] for call in calls), strict=False):
            if any(name in self.views for name in names):
                self.values(names)

    def values(self, names: Sequence[str]) -> None:
        """Compare the values ``names``, one of each part."""
        made = [self.views.get(name) for name in names]
        kinds = {None if v is None else self.kind(v, n) for v, n in zip(made, names, strict=True)}
        views = [view for view in made if view is not None]
        if len(kinds) == 1:
            self.arguments(views)
            return
        for view, inside in zip(made, self.made, strict=True):
            if view is not None and not self.reads(view, inside):
                self.found[id(view)] = view

    def kind(self, view: BoundSymbol, name: str) -> tuple[str, int]:
        """A value that is equal for views of the same places."""
        return self.token(view), [p.name for p in view.flat_outs].index(name)

    def reads(self, view: BoundSymbol, inside: set[str]) -> bool:
        """Check that ``view`` is one of a value that a part makes ``inside``, and no other can."""
        return any(
            p.name in inside or (p.name in self.views and self.reads(self.views[p.name], inside))
            for p in view.flat_args
        )
