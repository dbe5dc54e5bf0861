"""Places of starts and waits between the calls that compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tj_distributed.schedule.placing import Limits, placed
from tj_distributed.schedule.roles import Roles
from tj_distributed.sequence import described, starts
from tj_suites.collectives import Program, made_up, picture, places_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tj_core.extend import BoundSymbol


ONE = Limits()
"""The default: a gather starts ahead of another."""


def scheduled(program: Program, limits: Limits = ONE, *, fixed: bool = False) -> str:
    return picture(placed(program.calls, limits, fixed=fixed))


def layers(count: int = 4) -> Program:
    """Layers of two products, each with a gathered parameter: ZeRO's forward, as captured."""
    p = Program()
    x = p.given()
    for _ in range(count):
        weight = p.view(p.gathered(p.given()))
        x = p.product(p.product(x, weight), weight)
    return p


def backward(count: int = 3) -> Program:
    """Layers with a gather for the use and a reduction of the gradient."""
    p = Program()
    x = p.given()
    for _ in range(count):
        weight = p.gathered(p.given())
        x = p.product(x, weight)
        p.view(p.wait(p.start("R", p.light(p.product(x, weight)))))
    return p


@pytest.mark.parametrize(
    ("prefetch", "order"),
    [(0, "GGw..Gw..Gw..w.."), (1, "GGGw..Gw..w..w.."), (9, "GGGGw..w..w..w..")],
)
def test_gathers_start_ahead(prefetch: int, order: str) -> None:
    assert picture(layers().calls) == "Gw..Gw..Gw..Gw.."
    assert scheduled(layers(), Limits(prefetch)) == order


def test_gathers_in_flight_are_limited_by_bytes() -> None:
    assert scheduled(layers(), Limits(9, 3 * 64)) == "GGGGw..w..w..w.."
    assert scheduled(layers(), Limits(9, 2 * 64)) == "GGGw..Gw..w..w.."
    assert scheduled(layers(), Limits(9, 64)) == "GGw..Gw..Gw..w.."
    assert scheduled(layers(), Limits(9, 63)) == "Gw..Gw..Gw..Gw.."


def test_reductions_start_at_once_and_are_waited_for_at_the_end() -> None:
    assert picture(backward().calls) == "Gw...RwGw...RwGw...Rw"
    assert scheduled(backward(), Limits(0)) == "GGw...RGw...Rw...Rwww"


def test_a_reduction_does_not_wait_for_calls_that_it_does_not_need() -> None:
    p = Program()
    x = p.given()
    grad = p.light(p.product(x, x))
    p.product(x, x)
    p.wait(p.start("A", p.view(grad)))
    assert scheduled(p) == "..A.w"


def test_what_is_computed_of_a_reduction_for_the_results_alone_comes_last() -> None:
    p = Program()
    x = p.given()
    for _ in range(2):
        x = p.product(x, x)
        p.light(p.view(p.wait(p.start("A", x))))
    assert picture(p.calls) == ".Aw..Aw."
    assert scheduled(p) == ".A.Aw.w."


def test_a_wait_comes_before_the_first_use() -> None:
    p = Program()
    x = p.given()
    total = p.view(p.wait(p.start("A", x)))
    p.product(p.product(p.product(x, x), total), total)
    assert scheduled(p) == "A.w.."


def test_what_prepares_a_gather_runs_when_it_starts() -> None:
    p = Program()
    x = p.given()
    shards = [p.light(p.given()) for _ in range(3)]
    for shard in shards:
        x = p.product(x, p.gathered(shard))
    assert picture(p.calls) == "...Gw.Gw.Gw."
    assert scheduled(p, Limits(0)) == ".G.Gw..Gw.w."


def test_gathers_of_what_is_computed_start_when_it_is() -> None:
    """As in sequence parallel: they count for no limit."""
    p = Program()
    x = p.given()
    y = p.product(x, x)
    z = p.product(x, x)
    p.product(p.gathered(y), z)
    assert scheduled(p, Limits(0)) == ".G.w."


def test_a_reduction_of_what_another_gives_waits_while_there_is_something_to_compute() -> None:
    """As in a mesh of two dimensions: reduced to shards in one group, then over the other."""
    p = Program()
    x = p.given()
    for _ in range(3):
        x = p.product(x, x)
        p.wait(p.start("A", p.wait(p.start("R", x, "0")), "1"))
    assert picture(p.calls) == ".RwAw.RwAw.RwAw"
    assert scheduled(p) == ".R.RwA.RwAwAwww"


def test_nothing_passes_a_write() -> None:
    p = Program()
    x = p.given()
    y = p.product(x, p.gathered(p.given()))
    p.wait(p.start("A", y))
    p.write(x)
    p.product(x, p.gathered(p.given()))
    order = placed(p.calls, Limits(9), fixed=False)
    at = next(i for i, call in enumerate(order) if call.effects.mutates)
    assert picture(order[:at]) == "Gw.Aw"
    assert picture(order[at:]) == "Gw."


def test_groups_do_not_wait_for_each_other() -> None:
    p = Program()
    x = p.given()
    first = p.start("A", p.product(x, x), "0")
    second = p.start("A", x, "1")
    p.product(p.wait(first), p.wait(second))
    assert scheduled(p) == "A.Aww."


def test_roles_do_not_depend_on_sizes() -> None:
    """A rank without data multiplies matrices without rows, and has the others' order."""

    def order(rows: int) -> str:
        p = Program()
        x = p.given(rows, 4)
        shard = p.product(x, x)
        x = p.product(p.gathered(p.given()), x)
        p.product(x, p.gathered(shard))
        return scheduled(p)

    assert order(0) == order(4) == "G.Gw.w."


def test_a_fixed_order_is_kept() -> None:
    """The second gather stays behind the reduction, which ranks have agreed on."""
    p = backward(2)
    assert scheduled(p, Limits(9)) == "GGw...Rw...Rww"
    assert scheduled(p, Limits(9), fixed=True) == "Gw...RGw...Rww"


# ------------------------------------------------------------------------------- any program


def collectives(calls: Sequence[BoundSymbol]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for call in filter(starts, calls):
        found.setdefault(described(call).group, []).append(call.label)
    return found


@pytest.mark.parametrize("fixed", [False, True])
def test_any_program_stays_what_it_is(fixed: bool) -> None:
    """All calls, each after what it reads and not across a write; computing keeps its order."""
    for seed in range(60):
        p = made_up(seed)
        limits = Limits(seed % 4, (seed % 3) * 128 or None)
        order = placed(p.calls, limits, fixed=fixed)
        places, roles = places_in(order, p), Roles(p.calls)
        for barrier in roles.barriers:
            assert max(places[:barrier], default=-1) < places[barrier]
            assert min(places[barrier + 1 :], default=len(places)) > places[barrier]
        heavy = [i for i, call in enumerate(p.calls) if call.symbol.name.startswith("mm")]
        assert [places[i] for i in heavy] == sorted(places[i] for i in heavy)
        for kind in (roles.gathers, roles.starts):
            mine = [p.calls[i] for i in sorted(kind)]
            moved = [p.calls[i] for i in sorted(kind, key=places.__getitem__)]
            assert collectives(mine) == collectives(moved)
        if fixed:
            assert collectives(order) == collectives(p.calls)


def test_places_are_final() -> None:
    """A program that is placed once and placed again stays, if nothing else has changed."""
    for seed in range(30):
        once = placed(made_up(seed).calls, Limits(1), fixed=False)
        twice = placed(once, Limits(1), fixed=True)
        assert picture(placed(twice, Limits(1), fixed=True)) == picture(twice)
