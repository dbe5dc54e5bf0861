"""Views that keep equal parts of a program from being one region."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.proxy import TensorProxy
from tj_core.ir.symbol import Symbol
from tj_core.ir.trace import BoundSymbol
from tj_core.passes.fuse.differing import differing_views
from tj_core.passes.fuse.keys import call_token


def value(name: str) -> TensorProxy:
    return TensorProxy(name, (2,), (1,))


def view(place: int, of: str, *names: str) -> BoundSymbol:
    """Views ``names`` of the value ``of``, at ``place`` and after."""
    out = tuple(map(value, names))
    aliases = tuple(Alias(n, "arg", 0) for n in range(len(names)))
    effects = Effects(aliases=aliases)
    return BoundSymbol(Symbol("v", "part"), (value(of), place), outputs=out, effects=effects)


def step(name: str, *read: str) -> BoundSymbol:
    return BoundSymbol(Symbol("v", "step"), tuple(map(value, read)), outputs=value(name))


def found(parts: Sequence[Sequence[BoundSymbol]], *views: BoundSymbol) -> list[BoundSymbol]:
    by_name = {p.name: call for call in views for p in call.flat_outs}
    return differing_views(parts, by_name, call_token)


def test_other_places_of_one_value() -> None:
    views = [view(0, "x", "v0"), view(1, "x", "v1")]
    assert found([[step("a", "v0")], [step("b", "v1")]], *views) == views


def test_one_call_of_several_views() -> None:
    (made,) = views = [view(0, "x", "v0", "v1")]
    assert found([[step("a", "v0")], [step("b", "v1")]], *views) == [made]


def test_equal_places_of_several_values() -> None:
    views = [view(0, "x", "v0"), view(0, "y", "v1")]
    assert not found([[step("a", "v0")], [step("b", "v1")]], *views)


def test_parts_that_differ_otherwise() -> None:
    views = [view(0, "x", "v0"), view(1, "x", "v1")]
    assert not found([[step("a", "v0")], [step("b", "v1", "v1")]], *views)


def test_a_part_alone() -> None:
    assert not found([[step("a", "v0")]], view(0, "x", "v0"))


def test_only_the_view_that_differs() -> None:
    """The views of it are equal, and stay with the regions."""
    below = [view(0, "x", "v0"), view(1, "x", "v1")]
    above = [view(7, "v0", "w0"), view(7, "v1", "w1")]
    assert found([[step("a", "w0")], [step("b", "w1")]], *below, *above) == below


def test_a_view_beside_a_value() -> None:
    made = view(0, "x", "v0")
    assert found([[step("a", "v0")], [step("b", "y")]], made) == [made]


@pytest.mark.parametrize("further", [False, True])
def test_a_view_of_what_the_part_makes(further: bool) -> None:
    """No call before the part can make it."""
    views = [view(0, "a", "v0"), view(1, "b", "v1")]
    if further:
        views = [view(7, "a", "w0"), view(7, "b", "w1"), view(0, "w0", "v0"), view(1, "w1", "v1")]
    parts = [[step("a", "x"), step("c", "v0")], [step("b", "y"), step("d", "v1")]]
    assert not found(parts, *views)
