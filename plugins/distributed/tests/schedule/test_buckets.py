"""The order of calls before collectives are put in buckets."""

from __future__ import annotations

from tj_distributed.schedule.buckets import delayed
from tj_distributed.schedule.roles import Roles
from tj_suites.collectives import Program, made_up, picture, places_in


def three(*, write: bool = False, chained: bool = False) -> Program:
    """The gradient of a value with three uses, each reduced, and added two at a time."""
    p = Program()
    x, w = p.given(), p.given()
    first = p.wait(p.start("A", p.product(x, w)))
    second = p.wait(p.start("A", p.product(x, w)))
    both = p.light(first, second)
    if write:
        p.write(x)
    third = p.wait(p.start("A", p.product(both if chained else x, w)))
    p.product(p.light(both, third), w)
    return p


def test_a_sum_that_is_added_to_comes_behind_the_next_reduction() -> None:
    assert picture(three().calls) == ".Aw.Aw..Aw.."
    found = delayed(Roles(three().calls))
    assert picture(found.calls) == ".Aw.Aw.Aw..."
    assert [found.users[i] for i in sorted(found.starts)] == [[2], [5], [8]]


def test_what_a_start_or_a_product_needs_stays() -> None:
    roles = Roles(three(chained=True).calls)
    assert delayed(roles) is roles


def test_nothing_passes_a_write() -> None:
    roles = Roles(three(write=True).calls)
    assert delayed(roles) is roles


def test_any_program_stays_what_it_is() -> None:
    """All calls, each after what it reads; products, starts and writes keep their order."""
    changed = 0
    for seed in range(200):
        p = made_up(seed)
        roles = Roles(p.calls)
        found = delayed(roles)
        changed += found is not roles
        places = places_in(found.calls, p)
        kept = [places[i] for i in range(len(places)) if i not in roles.reduced]
        assert kept == sorted(kept)
        for barrier in roles.barriers:
            assert max(places[:barrier], default=-1) < places[barrier]
    assert changed > 10
