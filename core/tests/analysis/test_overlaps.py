"""Starts and waits of programs on vectors, and the calls between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
from tj_core.analysis.overlaps import overlaps
from tj_core.contract.rules import RuleTable
from tj_core.contract.starts import STARTS, Started
from tj_core.host.hookspecs import hookimpl
from tj_core.host.session import Session
from tj_core.ir.trace import Trace
from tj_core.testing.numeric import NumericPlugin, call, vector
from tj_core.text.language import EMPTY_LANGUAGE

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol

X, S, W, A, B, C = (vector(n, 2) for n in "xswabc")


def noise_starts(given: BoundSymbol) -> Started:
    return Started(given.symbol.name, "g", 16)


def rules() -> RuleTable[Any]:
    table: RuleTable[Any] = RuleTable(STARTS)
    table.set("num.noise", noise_starts)
    return table


def found(*calls: BoundSymbol, outputs: Any = W) -> list[tuple[int, str, int]]:
    trace = Trace((X,), calls, outputs, language=EMPTY_LANGUAGE)
    return [(o.after, o.before, o.between) for o in overlaps(trace, rules())]


def test_calls_between_start_and_wait_hide_it() -> None:
    before, start = call("neg", X, outputs=A), call("noise", X, outputs=S)
    inside, wait = call("neg", X, outputs=B), call("same", S, outputs=W)
    after = call("add", W, B, outputs=C)
    assert found(before, start, inside, wait, after) == [(1, "c", 1)]
    assert found(before, start, wait, inside, after) == [(1, "b", 0)]


def test_who_returns_nothing_does_not_wait() -> None:
    """A call that only looks at what was started comes before the wait, and computes nothing."""
    start, look = call("noise", X, outputs=S), call("check", S)
    assert found(start, look, call("neg", X, outputs=A), call("same", S, outputs=W)) == [(0, "", 1)]


def test_what_nobody_waits_for_ends_with_the_program() -> None:
    start = call("noise", X, outputs=S)
    assert found(start, call("neg", X, outputs=A), outputs=A) == [(0, "", 1)]


def test_other_starts_and_their_waits_do_not_count() -> None:
    one, two = call("noise", X, outputs=S), call("noise", X, outputs=A)
    waits = call("same", A, outputs=B), call("same", S, outputs=W)
    assert found(one, two, *waits, call("neg", W, outputs=C)) == 2 * [(0, "c", 0)]


def test_what_gives_two_values_is_waited_for_by_the_first() -> None:
    start, inside = call("noise", X, outputs=(S, A)), call("neg", X, outputs=C)
    first, second = call("same", S, outputs=W), call("same", A, outputs=B)
    after = call("neg", X, outputs=vector("d", 2))
    assert found(start, inside, first, second, after) == [(0, "d", 1)]
    assert found(start, first, inside, second, after) == [(0, "c", 0)]


class Starts:
    tj_name = "starts"

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[Any], ...]:
        return (rules(),)


@pytest.mark.usefixtures("own_project")
def test_explain_lists_what_is_started() -> None:
    def f(x: Any) -> Any:
        started = x.noise()
        return -(x + x) + started

    g = tj.jit(f, session=Session([Starts(), NumericPlugin()], overrides={"check": 2}))
    g([1.0, 2.0])
    explained = tj.explain(g)
    (one,) = explained.overlaps[""]
    assert (one.started, one.after, one.between, one.hidden) == (
        Started("noise", "g", 16), 0, 2, True
    )  # fmt: skip
    table = str(explained).partition("started:\n")[2].splitlines()
    assert table[0].split() == [
        "program", "call", "operation", "group", "bytes", "after", "before", "calls", "between"
    ]  # fmt: skip
    assert table[1].split()[1:4] == ["noise", "g", "16"]
