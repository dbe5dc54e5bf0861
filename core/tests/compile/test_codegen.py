"""Generated programs: lifetime of values, notes on errors, source for debuggers."""

from __future__ import annotations

import gc
import linecache
import traceback

import pytest
from tj_core.compile.codegen import generate
from tj_core.contract.dialects import Dialect
from tj_core.contract.rules import RuleTable
from tj_core.ir.proxy import NumberProxy, OpaqueProxy
from tj_core.ir.symbol import Constant, Context, Symbol
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.source import Source
from tj_core.text.language import EMPTY_LANGUAGE, Language


class Cell:
    """A value that counts the live values of its class."""

    alive = 0

    def __init__(self):
        Cell.alive += 1

    def __del__(self):
        Cell.alive -= 1


@pytest.fixture(autouse=True)
def _fresh():
    Cell.alive = 0


counts = []


def fresh(*args):
    counts.append(Cell.alive)
    return Cell()


def two(*args):
    counts.append(Cell.alive)
    return Cell(), Cell()


class Boom(Exception):
    """An error of the user's."""


def boom(*args):
    raise Boom("no", 3)


log = []


class manager:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        log.append(f"in {self.name}")

    def __exit__(self, *args):
        log.append(f"out {self.name}")


MEANING = {"fresh": fresh, "two": two, "boom": boom, "pair": lambda *a: a, "note": log.append}


def impl(name):
    return {Symbol("op", name): MEANING[name] for name in MEANING}


def cell(name):
    return OpaqueProxy(name, "Cell")


def op(name, *args, outputs=None, **more):
    return BoundSymbol(Symbol("op", name), args, outputs=outputs, **more)


def program(*calls, inputs=(), outputs=(), boxed=False, **more):
    trace = Trace(tuple(map(cell, inputs)), calls, outputs, **{"language": EMPTY_LANGUAGE, **more})
    counts.clear()
    log.clear()
    return generate(trace, impl(None), boxed=boxed)


def chain(n):
    return tuple(op("fresh", cell(f"v{i}"), outputs=cell(f"v{i + 1}")) for i in range(n))


# --------------------------------------------------------------------------------- entries


def test_a_call_runs_through_the_entry_for_its_kind_of_arguments():
    dialect = Dialect(
        "op",
        (),
        lambda symbol: lambda *args: ("resolved", *args),
        lambda call: (lambda *args: ("entry", *args)) if call.args == (1,) else None,
    )
    calls = op("f", 1, outputs=cell("a")), op("f", 2, outputs=cell("b"))
    g = op("g", 1, outputs=cell("c"))
    outputs = (cell("a"), cell("b"), cell("c"))
    trace = Trace((), (*calls, g), outputs, language=Language([dialect]))
    made = generate(trace, {g.symbol: lambda x: "an executor's"})
    assert made.function() == (("entry", 1), ("resolved", 2), "an executor's")
    assert "op_f(1)" in made.source
    assert "op_f_1(2)" in made.source


def test_a_rule_says_what_runs_a_call():
    """Before the dialect's entry; None leaves the call to that."""
    dialect = Dialect("op", (), lambda symbol: None, lambda call: lambda *args: ("entry", *args))
    rules = RuleTable("runs_as")
    rules.set("op.f", lambda call: (lambda x: ("rule", x)) if call.args == (1,) else None)
    calls = op("f", 1, outputs=cell("a")), op("f", 2, outputs=cell("b"))
    language = Language([dialect], runs_as=rules)
    made = generate(Trace((), calls, (cell("a"), cell("b")), language=language))
    assert made.function() == (("rule", 1), ("entry", 2))


# ------------------------------------------------------------------------------- lifetimes


def test_values_die_at_their_last_use():
    made = program(*chain(5), inputs=["v0"], outputs=cell("v5"))
    result = made.function(None)
    assert counts == [0, 1, 1, 1, 1]
    assert isinstance(result, Cell)
    assert Cell.alive == 1


def test_outputs_that_nobody_uses_die_at_once():
    calls = op("two", outputs=(cell("a"), cell("b"))), op("fresh", cell("a"), outputs=cell("c"))
    program(*calls, outputs=cell("c")).function()
    assert counts == [0, 1]


def test_boxed_arguments_die_in_the_program():
    made = program(*chain(3), inputs=["v0"], outputs=cell("v3"), boxed=True)
    box = [Cell()]
    made.function(box)
    assert counts == [1, 1, 1]
    assert box == []


def test_boxed_arguments_that_nobody_uses_die_first():
    made = program(op("fresh", outputs=cell("a")), inputs=["x", "y"], outputs=cell("y"), boxed=True)
    result = made.function([Cell(), Cell()])
    assert counts == [1]
    assert Cell.alive == 1
    assert isinstance(result, Cell)


def test_a_boxed_program_without_inputs():
    assert program(outputs=3, boxed=True).function([]) == 3


def test_a_program_is_freed_without_the_collector():
    made = program(*chain(1), inputs=["v0"])
    file = made.file
    assert file in linecache.cache
    gc.disable()
    try:
        del made
        assert file not in linecache.cache
    finally:
        gc.enable()


# ------------------------------------------------------------------------------- errors


def failing(**more):
    source = Source("/user/model.py", 12, "y = boom(x)", "forward", "layers.0")
    calls = *chain(2), op("boom", cell("v2"), outputs=cell("w"), source=source)
    return program(*calls, inputs=["v0"], outputs=cell("w"), **more)


@pytest.mark.parametrize("boxed", [False, True])
def test_an_error_is_the_users_own_with_a_note(boxed):
    made = failing(boxed=boxed)
    with pytest.raises(Boom) as caught:
        made.function([None] if boxed else None)
    assert caught.type is Boom
    assert caught.value.args == ("no", 3)
    assert caught.value.__notes__ == [
        "tj: raised by `w = op.boom(v2)`\n  at /user/model.py:12 in forward: y = boom(x) (layers.0)"
    ]
    assert caught.value.__cause__ is None


def test_a_traceback_shows_the_line_of_the_program():
    try:
        failing().function(None)
    except Boom as error:
        text = "".join(traceback.format_exception(error))
    assert "w = op_boom(v2)" in text
    assert "in computation" in text


def test_an_error_inside_a_context_is_noted_too():
    language = Language((), {"c": lambda v: "contextlib.nullcontext()"})
    calls = op("boom", context=Context.of(c=1)), op("note", 1)
    with pytest.raises(Boom) as caught:
        program(*calls, language=language).function()
    assert caught.value.__notes__ == ["tj: raised by `op.boom()`"]


def test_an_error_of_the_caller_has_no_note():
    with pytest.raises(ValueError, match="unpack") as caught:
        failing(boxed=True).function([1, 2])
    assert not hasattr(caught.value, "__notes__")


def test_every_line_is_mapped_to_its_call():
    language = Language((), {"c": lambda v: "contextlib.nullcontext()"})
    calls = op("note", 1), op("note", 2, context=Context.of(c=1)), op("note", 3)
    for boxed in (False, True):
        made = program(*calls, inputs=["x"], boxed=boxed, language=language)
        lines = made.source.splitlines()
        assert [lines[i - 1].strip() for i in made.lines] == [f"op_note({i})" for i in (1, 2, 3)]
        assert list(made.lines.values()) == list(calls)
        assert linecache.getline(made.file, 1) == lines[0] + "\n"


# ------------------------------------------------------------------------------- text


def test_contexts_are_entered_anew_each_time():
    language = Language((), {"c": lambda v: f"_manager({v!r})", "d": lambda v: "_manager('d')"})
    language.evaluate("0")
    language._globals["_manager"] = manager
    calls = [
        op("note", 0),
        op("note", 1, context=Context.of(c=1)),
        op("note", 2, context=Context.of(c=1)),
        op("note", 3, context=Context.of(c=1, d=1)),
        op("note", 4),
    ]
    # Not printed: `_manager` is no importable name.
    made = program(*calls, language=language)
    expected = [0, "in 1", 1, 2, "out 1", "in 1", "in d", 3, "out d", "out 1", 4]
    for _ in range(2):
        log.clear()
        made.function()
        assert log == expected


def test_the_context_of_the_trace_is_not_entered():
    context = Context.of(c=1)
    program(op("note", 1, context=context), context=context).function()
    assert log == [1]


def test_constants_are_bound_by_identity():
    a, b = Cell(), Cell()
    calls = op(
        "pair", Constant("_x", a, named=False), Constant("f.x", b), outputs=(cell("p"), cell("q"))
    )
    result = program(
        calls, inputs=["_x", "_f_x", "op_pair"], outputs=(cell("p"), cell("q"), Constant("f.x", b))
    )
    assert result.function(1, 2, 3) == (a, b, b)


def test_names_of_the_program_do_not_hide_its_own():
    names = ["op_note", "_annotate", "_args", "_error", "len", "Exception"]
    made = program(op("note", 7), inputs=names[:2], outputs=tuple(map(cell, names[:2])))
    assert made.function(1, 2) == (1, 2)
    assert log == [7]


def test_odd_symbols_get_names_that_are_always_the_same():
    symbol = Symbol("op", "<lambda>-3.from")
    trace = Trace((), (BoundSymbol(symbol, (1,), (("from", 2),)),), (), language=EMPTY_LANGUAGE)
    made = generate(trace, {symbol: lambda *a, **k: log.append((a, k))})
    log.clear()
    made.function()
    assert log == [((1,), {"from": 2})]
    assert "op__lambda__3_from(1, **{'from': 2})" in made.source


def test_outputs_of_every_shape():
    n = NumberProxy("n")
    made = program(
        op("pair", 1, (2, [3]), outputs=(n, (n.replace(name="m"), [3]))),
        outputs={"k": [n, n.replace(name="m")]},
    )
    assert made.function() == {"k": [1, 2]}
    assert program(op("pair", outputs=()), outputs=None).function() is None


def test_a_program_that_does_nothing():
    assert "try" not in program(inputs=["x"], outputs=cell("x")).source
    assert program(inputs=["x"], outputs=cell("x")).function(5) == 5


OWN = ("_args", "_box", "_error", "_annotate", "fresh", "op_fresh", "computation", "_plain",
       "Exception", "BaseException", "TypeError", "_Exception")  # fmt: skip


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("name", OWN)
def test_values_may_have_the_names_of_generated_code(name, boxed):
    x, y, z = (OpaqueProxy(n, "Cell") for n in ("x", name, "z"))
    calls = (
        BoundSymbol(Symbol("op", "pair"), (x, y), (), (z, OpaqueProxy("w", "Cell"))),
        BoundSymbol(Symbol("op", "note"), ("seen",), (), None),
    )
    outputs = (*calls[0].flat_outs[::-1], y)
    trace = Trace((x, y), calls, outputs, language=EMPTY_LANGUAGE)
    function = generate(trace, impl("pair") | impl("note"), boxed=boxed).function
    assert (function([1, 2]) if boxed else function(1, 2)) == (2, 1, 2)


@pytest.mark.parametrize("name", OWN)
def test_errors_say_what_raised_whatever_values_are_called(name):
    x = OpaqueProxy(name, "Cell")
    call = BoundSymbol(Symbol("op", "boom"), (x,), (), None)
    trace = Trace((x,), (call,), None, language=EMPTY_LANGUAGE)
    with pytest.raises(Boom) as raised:
        generate(trace, impl("boom")).function(1)
    assert any("raised by" in note for note in raised.value.__notes__)
