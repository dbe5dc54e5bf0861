"""Regions on vectors: groups of calls, order of execution, shared kernels of equal regions."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
from tj_core.compile.transforms import Transform
from tj_core.contract.decline import Decline
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.fusion import Fusion
from tj_core.contract.rules import RuleTable
from tj_core.errors import PluginError, TjWarning
from tj_core.host.hookspecs import hookimpl
from tj_core.host.session import Session
from tj_core.ir.stage import Stage
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.testing.fusing import LoopPlugin
from tj_core.testing.numeric import MEANING, NullPlugin, NumericPlugin, expansions
from tj_core.verify.verifier import verify

if TYPE_CHECKING:
    from tj_core.compile.context import PassContext
    from tj_core.compile.outcome import Outcome

pytestmark = pytest.mark.usefixtures("own_project")

X, Y = [1.0, -2.0, 4.0], [0.5, 3.0, 2.0]


def jitted(f: Callable[..., Any], *plugins: Any, **config: Any) -> Any:
    """``f`` in a session with ``plugins``, the numeric one last, whose passes are all verified."""
    overrides = {"check": 2, "strict": True, **config}
    return tj.jit(f, session=Session([*plugins, NumericPlugin()], overrides=overrides))


def program(g: Any) -> Trace:
    found: Trace = tj.last_trace(g)
    return found


def shape(g: Any) -> list[str]:
    """The calls of the claimed program, in order; regions with the operations inside."""
    return [
        f"{c.executor}({', '.join(i.symbol.path for i in c.body.calls)})"
        if c.symbol.namespace == c.executor and c.body
        else c.symbol.path
        for c in program(g).calls
    ]


def chain(x: Any, y: Any) -> Any:
    return -(x + y) * x


def test_neighbours_become_one_call() -> None:
    loop = LoopPlugin()
    g = jitted(chain, loop)
    assert g(X, Y) == [-(a + b) * a for a, b in zip(X, Y, strict=True)]
    assert shape(g) == ["loop(add, neg, mul)"]
    (region,) = loop.compiled
    assert [p.name for p in region.inputs] == ["a0", "a1"]
    assert [p.name for p in region.outputs] == ["_2"]
    verify(program(g), level=2, tags=g.__tj__.session.tags, expand=expansions)


def test_the_printed_program_reads_back() -> None:
    g = jitted(chain, LoopPlugin())
    g(X, Y)
    trace = program(g)
    assert "loop.region_" in str(trace)
    assert trace.stage is Stage.CLAIMED
    assert Trace.parse(str(trace), language=trace.language) == trace


def test_a_call_alone_is_no_region() -> None:
    loop = LoopPlugin()
    g = jitted(lambda x, y: x + y, loop)
    assert g(X, Y) == [1.5, 1.0, 6.0]
    assert shape(g) == ["add"]
    assert not loop.compiled
    (record,) = tj.explain(g).claims
    assert record.executor == "python"
    why = "it stands in no region: it needs 2 calls that compute, and has 1"
    assert record.declined == (("loop", why),)


def test_what_is_left_over_goes_to_the_highest_call() -> None:
    """An ``axpy`` none of whose parts is in a region is one call again."""

    def f(a: Any, x: Any, y: Any) -> Any:
        return a.axpy(x, y).noise()

    g = jitted(f, LoopPlugin(minimum=3))
    g(X, X, Y)
    assert shape(g) == ["axpy", "noise"]
    g = jitted(f, LoopPlugin(minimum=2))
    g(X, X, Y)
    assert shape(g) == ["loop(mul, add)", "noise"]


def test_a_region_is_not_entered_again() -> None:
    """``noise`` needs the first sum and the last sum needs ``noise``: two regions."""

    def f(x: Any, y: Any) -> Any:
        a = x + y
        b = a * a
        c = b.noise()
        return c + b + x

    g = jitted(f, LoopPlugin())
    assert shape_after(g, X, Y) == ["loop(add, mul)", "noise", "loop(add, add)"]


def test_what_need_not_wait_runs_before_and_cuts_nothing() -> None:
    def f(x: Any, y: Any) -> Any:
        a = x + y
        n = y.noise()
        return a * n

    g = jitted(f, LoopPlugin())
    assert shape_after(g, X, Y) == ["noise", "loop(add, mul)"]


def test_calls_with_effects_keep_their_order() -> None:
    def f(x: Any, y: Any) -> Any:
        a = -(x + y)
        b = a.noise()
        x.fill_(0.0)
        c = -(x + y)
        return a, b, c.noise(), x

    g = jitted(f, LoopPlugin())
    expected = f_eager = [list(X), list(Y)]
    result = g(*expected)
    assert shape(g) == ["loop(add, neg)", "noise", "fill_", "loop(add, neg)", "noise"]
    assert result[2][0] == -0.5
    assert f_eager[0] == [0.0] * 3


def test_two_executors_share_a_program() -> None:
    """Each executor has its own regions; values may go back and forth."""

    def f(x: Any, y: Any) -> Any:
        a = x + y + x
        b = a * a * y
        return b + a + b

    adds = LoopPlugin("adds", operations=("num.add",))
    muls = LoopPlugin("muls", operations=("num.mul",))
    g = jitted(f, adds, muls)
    assert shape_after(g, X, Y) == ["adds(add, add)", "muls(mul, mul)", "adds(add, add)"]
    assert g(X, Y) == jitted(f)(X, Y)


def test_the_config_says_who_is_asked_first() -> None:
    for first, second in (("one", "two"), ("two", "one")):
        g = jitted(chain, LoopPlugin("one"), LoopPlugin("two"), executors=[first, second])
        g(X, Y)
        assert [c.executor for c in program(g).calls] == [first]


def test_equal_regions_are_compiled_once() -> None:
    def f(x: Any, y: Any) -> Any:
        for _ in range(4):
            x = (-(x + y) * y).noise()
        return x

    loop = LoopPlugin()
    g = jitted(f, loop)
    g(X, Y)
    assert len(program(g).calls) == 8
    assert len(loop.compiled) == 1
    jitted_again = tj.jit(f, session=g.__tj__.session)
    jitted_again(X, Y)
    assert len(loop.compiled) == 1
    jitted_again([*X, 1.0], [*Y, 1.0])
    assert len(loop.compiled) == 2


def test_all_regions_of_a_program_are_compiled_together() -> None:
    def f(x: Any, y: Any) -> Any:
        a = (x + y).mul(x).noise()
        return (a * y + a * a).noise()

    loop = LoopPlugin()
    jitted(f, loop)(X, Y)
    assert loop.batches == [2]


def test_layers_are_found_without_marks() -> None:
    """Repeated calls in one group are cut into parts, which are compiled once."""

    def layer(x: Any, y: Any) -> Any:
        for _ in range(3):
            x = -(x * y) + y
        return x + y * y

    def f(x: Any, y: Any) -> Any:
        for _ in range(8):
            x = layer(x, y)
        return -x

    loop = LoopPlugin()
    g = jitted(f, loop)
    assert g(X, Y) == jitted(f)(X, Y)
    assert len(program(g).calls) >= 7
    assert len(loop.compiled) <= 3


class WholePlugin(LoopPlugin):
    """An executor that keeps repeated calls in one loop if ``whole``."""

    def __init__(self, whole: Callable[[Sequence[BoundSymbol]], bool]) -> None:
        super().__init__()
        self.whole = whole

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        (executor,) = super().tj_executors()
        assert executor.fusion is not None
        return (replace(executor, fusion=replace(executor.fusion, whole=self.whole)),)


def repeating(x: Any, y: Any) -> Any:
    for _ in range(12):
        x = (-(x * y) + y) * y + x
    return x


@pytest.mark.parametrize("whole", [True, False])
def test_an_executor_may_keep_calls_that_repeat_in_one_region(whole: bool) -> None:
    loop = WholePlugin(lambda calls: whole)
    g = jitted(repeating, loop)
    assert g(X, Y) == jitted(repeating)(X, Y)
    assert (len(program(g).calls) == 1) is whole


def test_an_executor_that_fails_to_say_is_named() -> None:
    def whole(calls: Sequence[BoundSymbol]) -> bool:
        raise KeyError("what")

    with pytest.raises(PluginError, match=r"loop.* failed in its check of num\.mul: KeyError"):
        jitted(repeating, WholePlugin(whole))(X, Y)


def test_a_value_that_only_the_region_reads_is_not_returned() -> None:
    def f(x: Any, y: Any) -> Any:
        a = x + y
        b = -a
        return b * y, a

    loop = LoopPlugin()
    g = jitted(f, loop)
    assert g(X, Y) == ([-(a + b) * b for a, b in zip(X, Y, strict=True)], [1.5, 1.0, 6.0])
    assert [p.name for p in loop.compiled[0].outputs] == ["_0", "_2"]


def test_calls_that_nobody_needs_stay_where_all_are_wanted() -> None:
    """Unused calls run alone, since a region would leave them out."""

    def f(x: Any, y: Any) -> Any:
        a = x + y
        -(a * x)
        return a * y

    class Declines:
        tj_name = "declines"

        @hookimpl
        def tj_transforms(self) -> tuple[Transform, ...]:
            def apply(trace: Trace, context: PassContext) -> Outcome:
                return context.decline(Decline("for its errors", keep_all_calls=True))

            return (Transform("declines", apply, Stage.ACQUIRED),)

    expected = [(a + b) * b for a, b in zip(X, Y, strict=True)]
    g, all_ = jitted(f, LoopPlugin()), jitted(f, LoopPlugin(), Declines())
    assert g(X, Y) == all_(X, Y) == expected
    assert shape(g) == ["loop(add, mul)"]
    assert sorted(shape(all_)) == ["loop(add, mul)", "mul", "neg"]


class Axpy:
    """An executor that claims axpy, with a function that may stand in others' regions."""

    tj_name = "fast"

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set("num.axpy", Claim(MEANING["axpy"], traceable=True))
        return (Executor("fast", claims),)


def test_a_claimed_call_stands_in_the_region_of_a_host() -> None:
    def f(x: Any, y: Any) -> Any:
        return (x + y).axpy(x, y) * y

    hosting = jitted(f, Axpy(), LoopPlugin(hosts=True))
    expected = jitted(f)(X, Y)
    assert hosting(X, Y) == expected
    assert shape(hosting) == ["loop(add, num.axpy, mul)"]
    apart = jitted(f, Axpy(), LoopPlugin())
    assert apart(X, Y) == expected
    assert shape(apart) == ["add", "fast(axpy)", "mul"]


def test_compiling_is_no_part_of_the_pass_that_finds_regions() -> None:
    loop = LoopPlugin()
    fuse = loop.fuse

    def slow(region: Any) -> Any:
        time.sleep(0.2)
        return fuse(region)

    loop.fuse = slow  # type: ignore[method-assign]
    g = jitted(chain, loop)
    g(X, Y)
    seconds = tj.stats(g).seconds
    assert seconds["compile regions"] > seconds["fuse"]


def test_a_claimed_call_alone_is_no_region_of_a_host() -> None:
    g = jitted(lambda x, y: x.axpy(x, y), Axpy(), LoopPlugin(hosts=True))
    assert g(X, Y) == [a * a + b for a, b in zip(X, Y, strict=True)]
    assert shape(g) == ["fast(axpy)"]


def test_a_region_that_failed_in_strict_mode_fails_again() -> None:
    """A raised failure leaves no region without a function in the session."""

    def f(x: Any, y: Any) -> Any:
        a = (x + y).mul(x).noise()
        return (-a) + a

    loop = LoopPlugin()

    def broken(region: Any) -> Any:
        raise RuntimeError("the compiler is broken")

    loop.fuse = broken  # type: ignore[method-assign]
    g = jitted(f, loop)
    for _ in range(2):
        with pytest.raises(PluginError, match="the compiler is broken"):
            g(X, Y)
    del loop.fuse
    assert jitted(f, loop)(X, Y) == jitted(f)(X, Y)


def test_a_group_that_the_executor_refuses_runs_one_by_one() -> None:
    loop = LoopPlugin()
    loop.check = lambda calls: Decline("not today")  # type: ignore[method-assign]
    g = jitted(chain, loop)
    g(X, Y)
    assert shape(g) == ["add", "neg", "mul"]


def test_what_one_executor_refuses_is_asked_of_the_next() -> None:
    picky, next_one = LoopPlugin("picky"), LoopPlugin("next")
    picky.check = lambda calls: Decline("not today")  # type: ignore[method-assign]
    g = jitted(chain, picky, next_one)
    assert g(X, Y) == jitted(chain)(X, Y)
    assert shape(g) == ["next(add, neg, mul)"]


NOISE = ("num.noise", "python")


def test_explain_names_the_regions() -> None:
    def f(x: Any, y: Any) -> Any:
        for _ in range(3):
            x = (-(x + y) * y).noise()
        return x

    g = jitted(f, LoopPlugin())
    g(X, Y)
    explained = tj.explain(g)
    (use,) = explained.regions
    assert (use.program, use.calls, use.kernel.executor) == ("", 3, "loop")
    assert use.kernel.fused is not None
    assert "for a0, a1" in use.kernel.fused.source
    name = f"loop.{use.kernel.region.name}"
    assert name in str(explained)
    assert "compiled" in str(explained)
    rows = [(row[1], row[2]) for row in explained.rows()]
    assert rows == [("num.add", name), ("num.neg", name), ("num.mul", name), NOISE] * 3


# ------------------------------------------------------------------------------ what goes wrong


def raises(function: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*args: Any) -> Any:
        raise ValueError("no kernel for today")

    return broken


FAULTS = {
    "raises at the first run": (raises, "ValueError: no kernel for today"),
    "returns too few": (lambda f: lambda *a: f(*a)[:-1], "returned 0 values, not 1"),
    "returns None": (lambda f: lambda *a: None, "returned"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_region_that_fails_falls_back_once(fault: str) -> None:
    change, said = FAULTS[fault]
    loop = LoopPlugin(change=change)
    g = jitted(chain, loop, strict=False)
    expected = jitted(chain)(X, Y)
    with pytest.warns(TjWarning, match=said) as found:
        assert g(X, Y) == expected
    assert len(found) == 1
    assert "'loop'" in str(found[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert g(X, Y) == expected
        again = tj.jit(lambda a, b: -(a + b) * a, session=g.__tj__.session)
        assert again(X, Y) == expected
    assert "runs one by one: " in str(tj.explain(g))
    strict = jitted(chain, LoopPlugin(change=change))
    with pytest.raises(PluginError, match=said):
        strict(X, Y)


def test_a_region_that_cannot_be_compiled_falls_back_alone() -> None:
    """One of two regions cannot be compiled; the other region is compiled."""

    def f(x: Any, y: Any) -> Any:
        a = (x + y).mul(x).noise()
        return (-a) + a

    loop = LoopPlugin()
    fuse = loop.fuse

    def picky(region: Any) -> Any:
        if any(c.symbol.path == "mul" for c in region.body.calls):
            raise RuntimeError("the compiler is broken")
        return fuse(region)

    loop.fuse = picky  # type: ignore[method-assign]
    g = jitted(f, loop, strict=False)
    with pytest.warns(TjWarning, match="the compiler is broken") as found:
        result = g(X, Y)
    assert result == jitted(f)(X, Y)
    assert len(found) == 1
    assert len(loop.compiled) == 1


def shape_after(g: Any, *args: Any) -> list[str]:
    g(*args)
    return shape(g)


def test_null_executors_and_fusers_live_side_by_side() -> None:
    g = jitted(chain, NullPlugin("num.neg", answer=lambda x: [-v for v in x]), LoopPlugin())
    assert g(X, Y) == jitted(chain)(X, Y)
    assert shape(g) == ["add", "null(neg)", "mul"]


def test_what_is_kept_needs_to_say_what_it_depends_on() -> None:
    plain = LoopPlugin()
    with pytest.raises(PluginError, match="both restore and fingerprint"):
        Fusion(plain.can_fuse, plain.fuse, restore=lambda region, text: plain.fuse(region))


def test_stats_count_the_regions_that_were_compiled_and_found() -> None:
    def twice(x: Any, y: Any) -> Any:
        return -((x + y) * y).noise() * y

    g = jitted(twice, LoopPlugin())
    g(X, Y)
    h = tj.jit(twice, session=g.__tj__.session)
    h(X, Y)
    found = [(s.region_misses, s.region_hits, s.region_kept) for s in map(tj.stats, (g, h))]
    regions = len(tj.explain(g).regions)
    assert regions > 1
    assert found == [(regions, 0, 0), (0, regions, 0)]
