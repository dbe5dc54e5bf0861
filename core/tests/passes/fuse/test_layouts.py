"""Strides that an executor chooses for values between programs, on vectors."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
from tj_core import extend
from tj_core.analysis.liveness import free_values, value_names
from tj_core.compile.transforms import Transform
from tj_core.edit.editor import TraceEditor
from tj_core.errors import PluginError, TjWarning
from tj_core.host.hookspecs import hookimpl
from tj_core.host.session import Session
from tj_core.ir.stage import Stage
from tj_core.testing.fusing import LoopPlugin
from tj_core.testing.numeric import MEANING, NumericPlugin, Spread

if TYPE_CHECKING:
    from tj_core.compile.codegen import Program
    from tj_core.compile.context import PassContext
    from tj_core.compile.outcome import Outcome
    from tj_core.contract.fusion import Fused, FusionRegion
    from tj_core.ir.trace import Trace

pytestmark = pytest.mark.usefixtures("own_project")

X, Y = [1.0, -2.0, 4.0], [0.5, 3.0, 2.0]


class Spreading(LoopPlugin):
    """An executor that returns flexible results as ``Spread``, and declares ``said`` strides."""

    def __init__(self, said: dict[int, tuple[int, ...]] | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.said = said
        self.took: list[list[type]] = []

    def fuse(self, region: FusionRegion) -> Fused:
        """A loop that records the types of its arguments."""
        fused = super().fuse(region)

        def run(*args: Any) -> list[Any]:
            self.took.append([type(a) for a in args])
            found = fused.function(*args)
            return [Spread(x) if i in region.flexible else x for i, x in enumerate(found)]

        said = dict.fromkeys(region.flexible, (2,)) if self.said is None else self.said
        return replace(fused, function=run, strides=said)


@dataclass
class Halving:
    """Run the calls from ``place`` on in a second program, which reads saved values only."""

    place: int
    tj_name: str = "halving"
    later: list[Program] = field(default_factory=list)
    change: Callable[[Any], Any] = list

    @hookimpl
    def tj_transforms(self) -> tuple[Transform, ...]:
        return (Transform("halve", self.halve, Stage.ACQUIRED),)

    def halve(self, trace: Trace, context: PassContext) -> Outcome:
        first, then = trace.calls[: self.place], trace.calls[self.place :]
        made = {p.name for call in then for p in call.defined()}
        returned = [p for p in trace.outputs if p.name not in made]
        rest = [p for p in trace.outputs if p.name in made]
        saved = free_values(then, rest)
        flexible = {p.name for p in saved} - value_names((trace.inputs, returned))

        def half(calls: Any, inputs: Any, outputs: Any) -> Trace:
            editor = TraceEditor(trace)
            editor.append(*calls)
            return editor.done(inputs=tuple(inputs), outputs=outputs)

        second = half(then, saved, tuple(rest))

        def assemble(program: Program, compile_later: Any) -> Callable[..., Any]:
            def run(*inputs: Any) -> Any:
                results, kept = program.function(list(inputs))
                self.later.append(compile_later("later", second))
                return (*results, *self.later[-1].function(self.change(kept)))

            return run

        first_half = half(first, trace.inputs, (tuple(returned), tuple(saved)))
        others = {"later": second}
        return context.assemble(first_half, others, assemble, boxed=True, flexible=flexible)


def f(x: Any, y: Any) -> Any:
    """The sum is saved and returned, the product only saved; two later calls read both."""
    a = x + y
    b = -(a * x)
    c = b * y
    return a, c + b


def jitted(g: Callable[..., Any], *plugins: Any, **config: Any) -> Any:
    overrides = {"check": 2, "strict": True, **config}
    return tj.jit(g, session=Session([*plugins, NumericPlugin()], overrides=overrides))


def expected(g: Callable[..., Any] = f) -> Any:
    return jitted(g)(X, Y)


def test_the_reader_is_given_the_strides_that_were_chosen() -> None:
    loop, halving = Spreading(), Halving(3)
    g = jitted(f, loop, halving)
    assert g(X, Y) == expected()
    first, later = loop.compiled
    saved = {p.name: i for i, p in enumerate(first.outputs)}
    assert first.flexible == {saved["_2"]}
    assert not first.strides
    assert set(later.strides.values()) == {(2,)}
    assert not later.flexible
    (place,) = later.strides
    first_runs = loop.took[:2]  # what has never run runs twice
    assert first_runs == [[list, list]] * 2
    assert loop.took[2][place] is Spread
    assert loop.took[2].count(list) == 1
    assert [p.strides for p in later.inputs] == [(1,), (1,)]
    assert {p.strides for p in later.actual_inputs} == {(1,), (2,)}
    assert (2,) in {p.strides for p in halving.later[0].inputs}


def test_what_the_user_sees_is_laid_out_as_in_the_trace() -> None:
    g = jitted(f, Spreading(), Halving(3))
    assert [type(x) for x in g(X, Y)] == [list, list]


def test_regions_that_read_other_strides_are_others() -> None:
    """The same later program twice: of a value with chosen strides, then with declared ones."""
    loop = Spreading()
    session = Session([loop, Halving(3), NumericPlugin()], overrides={"check": 2, "strict": True})
    tj.jit(f, session=session)(X, Y)

    def all_returned(x: Any, y: Any) -> Any:
        a = x + y
        b = -(a * x)
        c = b * y
        return b, c + b

    tj.jit(all_returned, session=session)(X, Y)
    later = [r for r in loop.compiled if len(r.body.calls) == 2]
    assert [len(r.strides) for r in later] == [1, 0]
    assert later[0].key != later[1].key


@pytest.mark.parametrize("check", [0, 3])
def test_values_are_compared_whatever_their_strides(check: Any) -> None:
    assert jitted(f, Spreading(), Halving(3), check=check)(X, Y) == expected()


def test_a_program_that_another_executor_reads_it_in_gets_a_copy() -> None:
    """``fuse`` refuses the region at compile time, so that its calls run one by one."""
    loop = Spreading()
    fuse, took = loop.fuse, []

    def picky(region: FusionRegion) -> Fused:
        if region.strides:
            took.append(region.strides)
            raise RuntimeError("no kernel for these strides")
        return fuse(region)

    loop.fuse = picky  # type: ignore[method-assign]
    g = jitted(f, loop, halving := Halving(3), strict=False)
    with pytest.warns(TjWarning, match="no kernel for these strides"):
        result = g(X, Y)
    assert result == expected()
    assert took
    assert [type(x) for x in result] == [list, list]
    assert (2,) in {p.strides for p in halving.later[0].inputs}


def test_a_value_that_comes_otherwise_is_not_read_as_what_it_should_be() -> None:
    g = jitted(f, Spreading(), halving := Halving(3), strict=False)
    halving.change = lambda kept: [list(x) for x in kept]
    with pytest.warns(TjWarning, match=r"its input \d has strides \(1\), not \(2\)"):
        assert g(X, Y) == expected()


def test_a_call_in_no_region_gets_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor accepts the call, but does not run it: a single call is no region."""
    took = []
    neg = MEANING["neg"]
    monkeypatch.setitem(MEANING, "neg", lambda x: took.append(type(x)) or neg(x))

    def alone(x: Any, y: Any) -> Any:
        b = (x + y) * x
        return x * y, -b

    loop = Spreading()
    g = jitted(alone, loop, halving := Halving(3))
    assert g(X, Y) == expected(alone)
    assert loop.compiled[0].flexible
    assert took[0] is list
    assert [p.strides for p in halving.later[0].inputs] == [(2,)]


def test_strides_are_not_free_if_another_executor_reads_the_value() -> None:
    def noisy(x: Any, y: Any) -> Any:
        b = -(x * y)
        return x + y, b.noise()

    loop = Spreading()
    jitted(noisy, loop, Halving(3))(X, Y)
    assert all(not r.flexible for r in loop.compiled)


def test_strides_are_not_free_if_the_program_itself_reads_the_value() -> None:
    def read(x: Any, y: Any) -> Any:
        b = -(x * y)
        n = b.noise()
        c = b * y
        return n, c + b

    loop = Spreading()
    assert jitted(read, loop, Halving(3))(X, Y) == expected(read)
    assert all(not r.flexible and not r.strides for r in loop.compiled)


@pytest.mark.parametrize("chooses", [True, False])
def test_the_script_of_a_region_says_its_strides(
    chooses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failing region chooses strides, or reads a value with chosen strides."""
    loop, broken = Spreading(), Spreading(change=lambda f: lambda *a: [x[:-1] for x in f(*a)])
    right, wrong = loop.fuse, broken.fuse
    loop.fuse = lambda region: (  # type: ignore[method-assign]
        wrong if bool(region.flexible) is chooses else right
    )(region)
    g = jitted(f, loop, Halving(3), strict=False)
    with pytest.warns(TjWarning, match="has shape") as found:
        assert g(X, Y) == expected()
    (path,) = re.findall(r"python (\S+\.py) shows it", str(found[0].message))
    fixed, reproduce = Spreading(), extend.reproduce
    here = Session([fixed, NumericPlugin()], overrides={"strict": False})
    monkeypatch.setattr(extend, "reproduce", lambda *a, **k: reproduce(*a, **k, session=here))
    runpy.run_path(path)
    (region,) = fixed.compiled
    assert bool(region.flexible) is chooses
    assert (Spread in fixed.took[0]) is bool(region.strides)


LIES = {
    "says nothing": ({}, "has strides (2), not (1)"),
    "says something else": ({1: (3,)}, "has strides (2), not (3)"),
    "chooses what is not free": ({0: (2,), 1: (2,)}, "the strides of output 0, which are fixed"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_strides_is_found_and_named(lie: str) -> None:
    said, message = LIES[lie]
    loop = Spreading(said)
    fuse = loop.fuse
    loop.fuse = lambda region: replace(  # type: ignore[method-assign]
        made := fuse(region), strides=made.strides if region.flexible else {}
    )
    g = jitted(f, loop, halving := Halving(3), strict=False)
    with pytest.warns(TjWarning) as found:
        assert g(X, Y) == expected()
    (warning,) = found
    assert message in str(warning.message)
    assert "'loop'" in str(warning.message)
    assert {p.strides for p in halving.later[0].inputs} == {(1,)}
    strict = Spreading(said)
    with pytest.raises(PluginError, match="strides"):
        jitted(f, strict, Halving(3))(X, Y)
