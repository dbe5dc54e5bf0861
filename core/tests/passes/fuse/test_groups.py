"""Groups of made-up programs: each unit runs after the units that make its inputs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tj_core.contract.executors import Executor
from tj_core.contract.fusion import Fusion
from tj_core.contract.rules import RuleTable
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.proxy import Device, TensorProxy
from tj_core.ir.symbol import Context, Symbol
from tj_core.ir.tags import FENCE, TagSet
from tj_core.ir.trace import BoundSymbol
from tj_core.passes.fuse.groups import Group, Owner, grouped, is_free_view
from tj_core.passes.fuse.plan import Fusers, plan

CPU = frozenset({Device("cpu")})
OWNERS = (
    Owner("a", Context.of(grad=True), CPU),
    Owner("a", Context.of(grad=False), CPU),
    Owner("b", Context.of(grad=True), CPU),
    None,
)


def value(name: str) -> TensorProxy:
    return TensorProxy(name, (3,), (1,))


def call(place: int, kind: str, reads: Sequence[str]) -> BoundSymbol:
    aliases = (Alias(0, "arg", 0),) if kind == "view" else ()
    args = tuple(map(value, reads[:1] if kind == "view" else reads))
    made = value(f"v{place}")
    return BoundSymbol(Symbol("x", kind), args, outputs=made, effects=Effects(aliases=aliases))


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[BoundSymbol], dict[int, Owner]]:
    calls, owners = [], {}
    for place in range(draw(st.integers(1, 9))):
        known = ["x", *(f"v{i}" for i in range(place))]
        reads = draw(st.lists(st.sampled_from(known), min_size=1, max_size=2))
        calls.append(call(place, draw(st.sampled_from(["view", "compute"])), reads))
        if (owner := draw(st.sampled_from(OWNERS))) is not None:
            owners[place] = owner
    return calls, owners


def missing(calls: Sequence[BoundSymbol], owners: dict[int, Owner]) -> list[str]:
    """Values that a unit reads before they are made, without views that its group makes."""
    views = {c.outputs.name: (owners.get(i), c) for i, c in enumerate(calls) if is_free_view(c)}
    there, found = {"x"}, []

    def has(name: str, owner: Owner | None) -> bool:
        if name in there:
            return True
        maker, view = views.get(name, (None, None))
        return (
            view is not None
            and owner is not None
            and maker == owner
            and has(view.flat_args[0].name, owner)
        )

    for unit in grouped(calls, owners):
        inside = unit.calls if isinstance(unit, Group) else (unit,)
        owner = unit.owner if isinstance(unit, Group) else None
        for c in inside:
            found += [p.name for p in c.flat_args if not has(p.name, owner)]
            there.add(c.outputs.name)
    return found


@given(programs())
def test_what_is_read_is_there(made: tuple[list[BoundSymbol], dict[int, Owner]]) -> None:
    calls, owners = made
    units = grouped(calls, owners)
    inside = [c.label for u in units for c in (u.calls if isinstance(u, Group) else (u,))]
    assert sorted(inside) == sorted(c.label for c in calls)
    assert missing(calls, owners) == []


def test_calls_of_a_group_that_is_refused_follow_the_views_that_they_read() -> None:
    """A group makes its views itself, and the calls that make them come after it."""
    fusion = Fusion(lambda _: True, lambda regions: [], minimum=3)
    fusers = Fusers({"a": Executor("a", RuleTable("claim"), fusion=fusion)})
    calls = [
        call(0, "view", ["x"]),
        call(1, "view", ["v0"]),
        call(2, "compute", ["v1"]),
        call(3, "compute", ["v2", "v0"]),
        call(4, "view", ["v3"]),
        call(5, "compute", ["v4"]).replace(effects=Effects(mutates=(0,))),
    ]
    found = plan([c.replace(executor=None if i == 5 else "a") for i, c in enumerate(calls)], fusers)
    assert [unit.label for unit in found.units if isinstance(unit, BoundSymbol)] == [
        f"v{i}" for i in range(6)
    ]


def test_a_view_of_another_context_is_made_before_it_is_read() -> None:
    """`torch.arange(n).unsqueeze(0)`, which is read under `torch.no_grad`, too."""
    calls = [call(0, "compute", ["x"]), call(1, "view", ["v0"]), call(2, "compute", ["v1"])]
    owners = {0: OWNERS[0], 1: OWNERS[0], 2: OWNERS[1]}
    assert missing(calls, {k: v for k, v in owners.items() if v is not None}) == []


@pytest.mark.parametrize(
    ("first", "second", "passes"),
    [
        ("collective:0", "collective:0", False),
        ("collective:0", "collective:1", True),
        ("collective:1", "collective:10", True),
        ("collective", "collective:1", False),
        ("collective:1", "collective", False),
        ("wait", "collective:0", True),
    ],
)
def test_calls_of_other_resources_may_pass(first: str, second: str, passes: bool) -> None:
    """The first has to wait for a group, the second has not; a group's name may be unknown."""
    calls = [
        call(0, "compute", ["x"]),
        *(call(i, "compute", [r]) for i, r in ((1, "v0"), (2, "x"))),
    ]
    calls[1] = calls[1].replace(effects=Effects(ordered=(first,)))
    calls[2] = calls[2].replace(effects=Effects(ordered=(second,)))
    units = grouped(calls, {0: OWNERS[0]})  # type: ignore[dict-item]
    places = [u.label for u in units if isinstance(u, BoundSymbol)]
    assert places == (["v2", "v1"] if passes else ["v1", "v2"])


def test_no_group_reaches_across_a_fence() -> None:
    """Calls that do not depend on the fence stay on their side of it."""
    calls = [call(i, "compute", ["x"]) for i in range(5)]
    owners = dict.fromkeys((0, 1, 3, 4), OWNERS[0])
    whole = grouped(calls, owners)  # type: ignore[arg-type]
    assert [len(u.calls) for u in whole if isinstance(u, Group)] == [4]
    calls[2] = calls[2].replace(tags=TagSet([FENCE]))
    before, fence, after = grouped(calls, owners)  # type: ignore[arg-type]
    assert isinstance(before, Group)
    assert isinstance(after, Group)
    assert (before.calls, fence, after.calls) == (tuple(calls[:2]), calls[2], tuple(calls[3:]))
