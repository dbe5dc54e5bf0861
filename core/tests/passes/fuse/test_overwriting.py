"""Regions that write the new value of an input to its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
from tj_core.compile.transforms import Transform
from tj_core.contract.expansion import bind_outputs
from tj_core.contract.rules import RuleTable
from tj_core.edit.editor import TraceEditor
from tj_core.errors import PluginError, has_written
from tj_core.host.hookspecs import hookimpl
from tj_core.host.session import Session
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.proxy import SymDim, TensorProxy
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Symbol
from tj_core.ir.tags import CONSUMES, NEW_VALUE_OF, TagSet
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.passes.fuse.overwriting import OVERWRITES, overwritable
from tj_core.passes.fuse.refusals import MOST_CALLS, REFUSES, Refusals
from tj_core.testing.fusing import LoopPlugin
from tj_core.testing.numeric import MEANING, NumericPlugin, call, expansions, vector
from tj_core.verify.verifier import verify

if TYPE_CHECKING:
    from tj_core.compile.context import PassContext

pytestmark = pytest.mark.usefixtures("own_project")

X, Y = [1.0, 2.0, 3.0], [0.0, 5.0, 0.0]


class Writing:
    """A plugin that makes results of the program new values of inputs, ``written`` by index.

    ``refused``: operations without known checks; ``asked``: operations with the check
    `num.asked`.
    """

    tj_name = "writing"

    def __init__(
        self, written: dict[int, str], refused: Sequence[str] = (), asked: Sequence[str] = ()
    ) -> None:
        self.written, self.refused, self.asked = written, refused, asked

    @hookimpl
    def tj_transforms(self) -> tuple[Transform, ...]:
        return (Transform("tag", self.tag, Stage.ACQUIRED, Stage.FUNCTIONAL),)

    def tag(self, trace: Trace, context: PassContext) -> Trace:
        editor = TraceEditor(trace, context.tags)
        outputs = list(trace.outputs) if isinstance(trace.outputs, tuple) else [trace.outputs]
        for place, name in self.written.items():
            editor.inherit(outputs[place], TagSet({NEW_VALUE_OF: name}))
        editor.append(*trace.calls)
        return editor.done(outputs=trace.outputs)

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[Any], ...]:
        overwrites: RuleTable[Any] = RuleTable(OVERWRITES)
        overwrites.set("num.over", lambda call: "some")
        refuses: RuleTable[Any] = RuleTable(REFUSES)
        for name in MEANING:
            refuses.set(f"num.{name}", self.refusal)
        return overwrites, refuses

    def refusal(self, call: BoundSymbol) -> Sequence[BoundSymbol] | None:
        name = call.symbol.path
        if name in self.asked:
            effects = Effects(ordered=("side_effect",))
            return [BoundSymbol(Symbol("num", "asked"), call.args[-1:], effects=effects)]
        return None if name in self.refused else ()


def fused(f: Callable[..., Any], writing: Writing, *more: Any, **facts: Any) -> tuple[Any, Any]:
    """``f`` with a fuser that may overwrite any input, and the fuser."""
    loop = LoopPlugin(**{"overwrites": lambda p: True, **facts})
    plugins = [loop, writing, *more, NumericPlugin()]
    return tj.jit(f, session=Session(plugins, overrides={"check": 2, "strict": True})), loop


def over(x: Any, y: Any) -> Any:
    new = x.over(y)
    return -new, new


def test_a_region_may_overwrite_what_becomes_of_an_input() -> None:
    g, loop = fused(over, Writing({1: "x"}))
    assert g(X, Y) == ([-1.0, -5.0, -3.0], [1.0, 5.0, 3.0])
    (region,) = loop.compiled
    place = next(i for i, p in enumerate(region.inputs) if p.name == "a0")
    (output,) = [i for i, p in enumerate(region.outputs) if p.name == "_0"]
    assert region.overwritten == {output: place}
    trace = tj.last_trace(g)
    (call,) = trace.calls
    assert call.effects == Effects(mutates=(place,), aliases=(Alias(output, "arg", place),))
    verify(trace, level=2, tags=g.__tj__.session.tags, expand=expansions)
    assert Trace.parse(str(trace), language=trace.language) == trace


PROGRAMS: dict[str, Callable[..., Any]] = {
    "its old value is returned": lambda x, y: (x + y, x.over(y)),
    "the new value depends on all of it": lambda x, y: (-y, x + y),
    "what is written depends on it": lambda x, y: (-y, x.over(x + y)),
    "what was written before is returned": lambda x, y: (x.over(y), x.over(y).over(-y)),
    "the input is returned": lambda x, y: (x, x.over(y), -y + y),
    "another call reads it": lambda x, y: (x.noise(), x.over(y) + y, x.over(y)),
    "nothing is written over it": lambda x, y: (-y, y + y),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_old_value_must_not_show(name: str) -> None:
    f = PROGRAMS[name]
    plain = tj.jit(f, session=Session([NumericPlugin()]))
    results = len(plain(X, Y))
    g, loop = fused(f, Writing({results - 1 - (name == "the input is returned"): "x"}))
    assert g(X, Y) == plain(X, Y)
    assert [region.overwritten for region in loop.compiled] == [{}] * len(loop.compiled)


def test_parts_of_a_chain_are_no_old_value() -> None:
    g, loop = fused(lambda x, y: (-y, x.over(y).over(-y)), Writing({1: "x"}))
    assert g(X, Y) == ([-0.0, -5.0, -0.0], [1.0, -5.0, 3.0])
    assert [len(region.overwritten) for region in loop.compiled] == [1]


def test_two_inputs() -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        return x.over(z), y.over(-z)

    def crossed(x: Any, y: Any, z: Any) -> Any:
        return x.over(z), y.over(x)

    g, loop = fused(f, Writing({0: "x", 1: "y"}))
    assert g(X, Y, [0.0, 0.0, 7.0]) == ([1.0, 2.0, 7.0], [0.0, 5.0, -7.0])
    assert [len(region.overwritten) for region in loop.compiled] == [2]
    g, loop = fused(crossed, Writing({0: "x", 1: "y"}))
    assert g(X, Y, [0.0, 0.0, 7.0]) == ([1.0, 2.0, 7.0], X)
    ((region,),) = [loop.compiled]
    (output,) = region.overwritten
    assert region.outputs[output].name == "_1", "what becomes of y depends on the old x"


def test_only_where_the_executor_and_the_tag_say_so() -> None:
    for writing, may in (
        (Writing({}), lambda p: True),
        (Writing({1: "z"}), lambda p: True),
        (Writing({1: "x"}), lambda p: False),
        (Writing({1: "x"}), None),
    ):
        g, loop = fused(over, writing, overwrites=may)
        g(X, Y)
        assert [region.overwritten for region in loop.compiled] == [{}]


def test_calls_that_may_raise_run_before_it() -> None:
    def f(x: Any, y: Any) -> Any:
        inverse = y.reciprocal()
        new = x.over(y)
        return inverse, -new, new

    def later(x: Any, y: Any) -> Any:
        new = x.over(y)
        return y.reciprocal(), -new, new

    def ahead(x: Any, y: Any) -> Any:
        new = x.over(y.reciprocal().noise())
        return -new, new

    for program, place, overwritten in ((f, 2, 0), (later, 2, 1), (ahead, 1, 1)):
        g, loop = fused(program, Writing({place: "x"}, refused=["reciprocal", "noise"]))
        g(X, [1.0, 1.0, 1.0])
        assert [len(r.overwritten) for r in loop.compiled][-1] == overwritten, program.__name__


def test_what_is_asked_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[float]] = []
    monkeypatch.setitem(MEANING, "asked", asked.append)

    def f(x: Any, y: Any, z: Any) -> Any:
        new = x.over(y)
        again = z.over(y)
        return -new, new, again

    g, loop = fused(f, Writing({1: "x", 2: "z"}, asked=["over"]))
    g(X, Y, X)
    assert asked == [Y]
    assert tj.last_trace(g).calls[0].symbol.path == "asked"
    assert [len(region.overwritten) for region in loop.compiled] == [2]


def test_what_is_asked_of_a_value_that_the_program_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[float]] = []
    monkeypatch.setitem(MEANING, "asked", asked.append)

    def f(x: Any, y: Any) -> Any:
        index = -(y + y)
        return -y, x.over(index)

    g, loop = fused(f, Writing({1: "x"}, asked=["over"]))
    assert g(X, Y) == ([-0.0, -5.0, -0.0], [1.0, -10.0, 3.0])
    assert asked == [[-0.0, -10.0, -0.0]]
    paths = [call.symbol.path for call in tj.last_trace(g).calls]
    assert paths[:3] == ["add", "neg", "asked"]
    assert len(paths) == 4
    assert [len(region.overwritten) for region in loop.compiled] == [1]

    def drawn(x: Any, y: Any) -> Any:
        return -y, x.over(y.noise())

    def long(x: Any, y: Any) -> Any:
        for _ in range(MOST_CALLS + 1):
            y = y + y
        return -y, x.over(y)

    for program in (drawn, long):
        asked.clear()
        g, loop = fused(program, Writing({1: "x"}, asked=["over"]))
        g(X, Y)
        assert not asked, "what is asked about may not run twice"
        assert not any(region.overwritten for region in loop.compiled)


def test_calls_of_others_are_as_their_bodies() -> None:
    rules: RuleTable[Any] = RuleTable(REFUSES)
    rules.set("num.mul", lambda call: ())
    x, z = vector("x", 3), vector("z", 3)
    axpy = bind_outputs(made := call("axpy", x, x, x), expanded(made), lambda _: "y")
    theirs = axpy.replace(symbol=Symbol("theirs", "axpy"))
    language = Session([NumericPlugin()]).language
    refusals = Refusals(Trace((x,), (call("noise", x, outputs=z),), z, language=language), rules)
    assert refusals.checks([theirs]) is None, "nothing is known of additions"
    rules.set("num.add", lambda call: ())
    assert refusals.checks([theirs]) == []
    assert refusals.checks([theirs.replace(body=None)]) is None
    rules.set("theirs.axpy", lambda call: [axpy])
    assert refusals.checks([theirs]) == [axpy]


def expanded(made: BoundSymbol) -> Any:
    return expansions.require(made).value(made)


@pytest.mark.parametrize("check", [0, 3])
def test_what_writes_in_place_is_believed_after_its_first_run(check: int) -> None:
    def change(right: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: list[float], y: list[float]) -> Any:
            new = right(x, y)
            x[:] = new[0]
            return [x, new[1]]

        return run

    loop = LoopPlugin(overwrites=lambda p: True, change=change)
    plugins = [loop, Writing({0: "x"}), NumericPlugin()]
    session = Session(plugins, overrides={"check": check, "strict": True})
    g = tj.jit(lambda x, y: (x.over(y), -x.over(y)), session=session)
    x = [*X]
    for y in ([0.0, 5.0, 0.0], [6.0, 0.0, 0.0], [0.0, 0.0, 7.0]):
        expected = [b or a for a, b in zip(x, y, strict=True)]
        new, other = g(x, y)
        assert new is x
        assert x == expected
        assert other == [-n for n in expected]
    plugins = [LoopPlugin(change=change), Writing({0: "x"}), NumericPlugin()]
    g = tj.jit(lambda x, y: (x.over(y), -x.over(y)), session=Session(plugins))
    with pytest.raises(PluginError, match="wrote to argument 'x'"):
        g([*X], Y)


def in_place(runs: list[list[float]]) -> Callable[..., Any]:
    """A change of a region's function, which writes its first result over its first input."""

    def change(right: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: list[float], y: list[float]) -> Any:
            runs.append(x)
            new, *others = right(x, y)
            x[:] = new
            return [x, *others]

        return run

    return change


def added(x: Any, y: Any) -> Any:
    return x + y, -y


@pytest.mark.parametrize("check", [0, 3])
def test_a_value_that_a_second_run_would_change_is_written_once(check: int) -> None:
    runs: list[list[float]] = []
    loop = LoopPlugin(overwrites=lambda p: True, consumes=True, change=in_place(runs))
    plugins = [loop, Writing({0: "x"}), NumericPlugin()]
    g = tj.jit(added, session=Session(plugins, overrides={"check": check, "strict": True}))
    x = [*X]
    for expected in ([1.0, 7.0, 3.0], [1.0, 12.0, 3.0]):
        new, other = g(x, Y)
        assert new is x
        assert x == expected
        assert other == [-0.0, -5.0, -0.0]
    assert sum(box is x for box in runs) == 2, "what is new is tried on copies"
    (call,) = tj.last_trace(g).calls
    assert CONSUMES in call.tags


def test_the_last_region_that_reads_a_value_writes_it() -> None:
    """Not the first, and not without `Fusion.consumes`: a further run would read the new value."""

    def twice(x: Any, y: Any) -> Any:
        drawn = (-x + y).noise()  # no loop computes it
        return drawn, x + drawn, -drawn

    for consumes, overwritten in ((True, [0, 1]), (False, [0, 0])):
        g, loop = fused(twice, Writing({1: "x"}), consumes=consumes)
        plain = tj.jit(twice, session=Session([NumericPlugin()]))
        assert g([*X], Y) == plain([*X], Y)
        assert [len(region.overwritten) for region in loop.compiled] == overwritten


def test_what_may_raise_later_runs_on_old_values() -> None:
    def later(x: Any, y: Any) -> Any:
        new = x + y
        return new, -y, y.reciprocal()

    for refused, overwritten in ((["reciprocal"], 0), ([], 1)):
        writing = Writing({0: "x"}, refused=refused)
        g, loop = fused(later, writing, consumes=True)
        assert g(X, [1.0, 1.0, 1.0])[0] == [2.0, 3.0, 4.0]
        assert [len(region.overwritten) for region in loop.compiled] == [overwritten]


def test_an_error_says_if_inputs_are_written() -> None:
    def failing(right: Callable[..., Any]) -> Callable[..., Any]:
        change = in_place(runs := [])(right)

        def run(x: list[float], y: list[float]) -> Any:
            change(x, y)
            return [x, -x if len(runs) > limit else right(x, y)[1]]  # type: ignore[operator]

        return run

    # The second run of a new function is on copies, too; the fourth run is that of another call.
    for limit, written in ((0, False), (1, False), (2, True), (3, True)):
        loop = LoopPlugin(overwrites=lambda p: True, consumes=True, change=failing)
        session = Session([loop, Writing({0: "x"}), NumericPlugin()])
        g = tj.jit(added, session=session)
        x = [*X]
        if written:
            if limit == 3:
                g(x, Y)
            with pytest.raises(TypeError) as caught:
                g(x, Y)
            assert has_written(caught.value)
        else:
            with pytest.warns(tj.TjWarning, match="failed on region"):
                assert g(x, Y)[0] == [1.0, 7.0, 3.0]
            assert x == X


def test_a_wrong_value_in_place_is_found_when_every_run_is_verified() -> None:
    def change(right: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: list[float], y: list[float]) -> Any:
            x[:] = [v + 1 for v in right(x, y)[0]]
            return [x, right(x, y)[1]]

        return run

    loop = LoopPlugin(overwrites=lambda p: True, change=change)
    session = Session([loop, Writing({0: "x"}), NumericPlugin()], overrides={"check": 3})
    g = tj.jit(lambda x, y: (x.over(y), -x.over(y)), session=session)
    with pytest.raises(PluginError, match="another value"):
        g([*X], Y)


STRIDES = [
    ((3,), (1,), True),
    ((2, 3), (3, 1), True),
    ((2, 3), (1, 2), True),
    ((2, 3), (8, 2), True),
    ((2, 3), (0, 1), False),
    ((2, 3), (1, 1), False),
    ((3, 1), (1, 0), True),
    ((4, 4), (2, 1), False),
    ((SymDim("n"), 3), (3, 1), True),
    ((SymDim("n"), 3), (1, 4), False),
    ((2, SymDim("n")), (SymDim("n"), 1), False),
]


@pytest.mark.parametrize(("shape", "strides", "fits"), STRIDES)
def test_elements_share_no_memory(shape: Any, strides: Any, fits: bool) -> None:
    x = vector("x", 1).replace(shape=shape, strides=strides)
    new = x.replace(name="new", tags=TagSet({NEW_VALUE_OF: "x"}))
    over = BoundSymbol(Symbol("num", "over"), (x, x), outputs=new)
    session = Session([Writing({}), NumericPlugin()])
    trace = Trace((x,), (over,), new, language=session.language)
    found = overwritable(trace, session.tables)
    assert (found.inputs if found is not None else {}) == ({"new": x} if fits else {})
    other: TensorProxy = x.replace(name="x", device=x.device.__class__("cuda", 0))
    assert (
        overwritable(Trace((other,), (over,), new, language=session.language), session.tables)
        is None
    )
    assert overwritable(trace, {}) is None
