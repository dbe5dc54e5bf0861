"""Numbers before groups: nothing is read before it is made, nothing passes what has effects."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tj_core.ir.effects import Effects
from tj_core.ir.proxy import NumberProxy, Proxy, TensorProxy
from tj_core.ir.symbol import Symbol
from tj_core.ir.trace import BoundSymbol
from tj_core.passes.fuse.early_numbers import numbers_first

WRITE, CHECK, DRAW = (
    Effects(mutates=(0,)),
    Effects(ordered=("side_effect",)),
    Effects(ordered=("random:cpu",)),
)


def large(name: str) -> TensorProxy:
    return TensorProxy(name, (3,), (1,))


def single(name: str) -> TensorProxy:
    return TensorProxy(name, (), ())


def number(name: str) -> NumberProxy:
    return NumberProxy(name, kind="float")


def call(
    name: str, made: Proxy | None, *args: Proxy, effects: Effects | None = None
) -> BoundSymbol:
    return BoundSymbol(Symbol("x", name), args, outputs=made, effects=effects or Effects())


def names(calls: list[BoundSymbol]) -> list[str]:
    return [c.symbol.path for c in calls]


def step(i: int) -> list[BoundSymbol]:
    """The calls of one parameter's step: it is scaled by a number that depends on its count."""
    return [
        call(f"count{i}", single(f"t{i}"), single(f"c{i}")),
        call(f"decay{i}", large(f"p{i}"), large("x")),
        call(f"item{i}", number(f"n{i}"), single(f"t{i}")),
        call(f"check{i}", None, number(f"n{i}"), effects=CHECK),
        call(f"power{i}", number(f"f{i}"), number(f"n{i}")),
        call(f"scale{i}", large(f"q{i}"), large(f"p{i}"), number(f"f{i}")),
    ]


def test_counts_come_first_as_one_group() -> None:
    found = names(numbers_first([*step(0), *step(1)]))
    assert found[:2] == ["count0", "count1"]
    assert found[2:8] == ["item0", "check0", "power0", "item1", "check1", "power1"]
    assert found[8:] == ["decay0", "scale0", "decay1", "scale1"]


def test_numbers_of_large_tensors_stay() -> None:
    calls = [
        call("compute", large("y"), large("x")),
        call("sum", single("s"), large("y")),
        call("item", number("n"), single("s")),
    ]
    assert numbers_first(calls) == calls


def test_nothing_passes_a_write() -> None:
    calls = [
        call("compute", large("y"), large("x")),
        call("write", None, single("c"), effects=WRITE),
        call("item", number("n"), single("c")),
    ]
    assert numbers_first(calls) == calls


def test_no_check_passes_another() -> None:
    calls = [
        call("compute", large("y"), large("x")),
        call("sum", single("s"), large("y")),
        call("read", number("m"), single("s")),
        call("first", None, number("m"), effects=CHECK),
        call("item", number("n"), single("c")),
        call("second", None, number("n"), effects=CHECK),
    ]
    assert numbers_first(calls) == calls


def test_draws_keep_their_order() -> None:
    calls = [
        call("compute", large("y"), large("x"), effects=DRAW),
        call("draw", single("r"), single("c"), effects=DRAW),
        call("item", number("n"), single("r")),
    ]
    assert numbers_first(calls) == calls


@st.composite
def programs(draw: st.DrawFn) -> list[BoundSymbol]:
    values: list[Proxy] = [large("x"), single("c"), number("k")]
    calls = []
    for i in range(draw(st.integers(1, 12))):
        read = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
        made: Proxy | None = draw(st.sampled_from([large, single, number]))(f"v{i}")
        effects = draw(st.sampled_from([Effects(), Effects(), Effects(), CHECK, DRAW, WRITE]))
        made = None if effects in (CHECK, WRITE) else made
        calls.append(call(f"c{i}", made, *read, effects=effects))
        values += [] if made is None else [made]
    return calls


@given(programs())
def test_made_up_programs(calls: list[BoundSymbol]) -> None:
    found = numbers_first(calls)
    assert sorted(names(found)) == sorted(names(calls))
    there = {"x", "c", "k"}
    for c in found:
        assert there.issuperset(p.name for p in c.flat_args)
        there |= {p.name for p in c.flat_outs}
    for effects in (CHECK, DRAW, WRITE):
        assert [c for c in found if c.effects == effects] == [
            c for c in calls if c.effects == effects
        ]
    # What comes after a write stays there.
    writes = [i for i, c in enumerate(calls) if c.effects == WRITE]
    if writes:
        before = {id(c) for c in calls[: writes[0]]}
        assert {id(c) for c in found[: writes[0]]} == before
