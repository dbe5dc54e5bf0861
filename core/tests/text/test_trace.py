"""Traces as text: deterministic Python that runs, and reads back as an equal trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tj_core
from tj_core.compile.codegen import generate
from tj_core.contract.dialects import Dialect
from tj_core.edit.editor import recorded
from tj_core.errors import ParseError, RuleMissingError, TraceError
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.names import Namer
from tj_core.ir.proxy import DType, NumberProxy, OpaqueProxy, SubclassInfo, SymDim, TensorProxy
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Constant, Context, Symbol
from tj_core.ir.tags import TagSet
from tj_core.ir.trace import Body, BoundSymbol, PassRecord, Subprogram, Trace
from tj_core.source import Source
from tj_core.testing.numeric import MEANING, call, vector
from tj_core.text.language import EMPTY_LANGUAGE, Language
from tj_core.text.roots import roots

F32 = DType("float32", 32, "float")
X, Y, Z = vector("x", 2), vector("y", 2), vector("z", 2)


def dialect(namespace="num"):
    prelude = ("from tj_core.testing.numeric import num",)
    return Dialect(namespace, prelude, lambda symbol: MEANING[symbol.name])


def speller(value):
    return f"contextlib.nullcontext({value!r})"


LANGUAGE = Language(
    [dialect()],
    {"grad": speller, "mode": speller, "none": lambda value: "contextlib.nullcontext()"},
)


def program(*calls, inputs=(X,), outputs=(), **more):
    return Trace(inputs, calls, outputs, language=more.pop("language", LANGUAGE), **more)


def read_back(trace):
    text = str(trace)
    found = Trace.parse(text, language=trace.language, constants=trace.constants())
    assert found == trace
    assert str(found) == trace.python(sources=False)
    return text


# ------------------------------------------------------------------------------- text


def test_the_text_is_exactly_this():
    a0, p, s = vector("a0", 2), vector("_0", 2), vector("_1", 2)
    body = Body((a0,), (call("mul", a0, a0, outputs=p), call("add", p, a0, outputs=s)), s)
    source = Source("/some/where/model.py", 12, "y = axpy(x,\n  x)", "f", "layers.0")
    trace = program(
        call("axpy", X, X, X, outputs=Y.replace(tags=TagSet({"SAVE": None, "N": 3})), body=body,
             source=source, tags=TagSet(["ALL"])),
        call("split", Y.replace(tags=TagSet({"SAVE": None, "N": 3})), 1, source=source,
             outputs=(vector("l", 1), vector("r", 1)), context=Context.of(grad=False)),
        call("fill_", X, 1.0, outputs=3, effects=Effects(mutates=(0,)), parent="y", executor="e",
             context=Context.of(grad=False)),
        outputs=(vector("l", 1), {"k": [None, vector("r", 1)]}),
        stage=Stage.FUNCTIONAL,
        tags=TagSet(["T"]),
    )  # fmt: skip
    assert (
        read_back(trace)
        == """\
from tj_core.testing.numeric import num
import contextlib


def computation(x):
    #: stage='FUNCTIONAL', tags={'T': None}
    # x: "cpu f64[2]"
    # model.py:12 (layers.0): y = axpy(x, x)
    y = num.axpy(x, x, x)  # y: "cpu f64[2]" {N=3, SAVE}
    #: tags={'ALL': None}
    #| _0 = num.mul(x, x)  # _0: "cpu f64[2]"
    #| _1 = num.add(_0, x)  # _1: "cpu f64[2]"
    #| return _1
    with contextlib.nullcontext(False):
        (l, r) = num.split(y, 1)
        # l: "cpu f64[1]"
        # r: "cpu f64[1]"
        #: context={'grad': False}
        _ = num.fill_(x, 1.0)
        #: constants=(3,), context={'grad': False}, mutates=(0,), parent='y', executor='e'
    return (l, {'k': [None, r]})
"""
    )


def test_a_claimed_trace_names_its_usual_executor_once():
    values = [vector(f"v{i}", 2) for i in range(4)]
    owners = ["e", "other", "e", None]
    calls = [call("neg", X, outputs=v, executor=o) for v, o in zip(values, owners, strict=True)]
    text = read_back(program(*calls, stage=Stage.CLAIMED))
    assert [line.strip() for line in text.splitlines() if "executor" in line] == [
        "#: stage='CLAIMED', executor='e'",
        "#: executor='other'",
        "#: executor=''",
    ]


def test_parts_can_be_left_out():
    trace = program(call("neg", X, outputs=Y, body=Body((), (), Y), source=Source("f.py", 1)))
    assert "#| " not in trace.python(bodies=False)
    assert "f.py" not in trace.python(sources=False)
    assert "f.py:1\n" in str(trace)


def test_equality_leaves_out_history_and_sources():
    trace = program(call("neg", X, outputs=Y, source=Source("f.py", 1)))
    other = program(call("neg", X, outputs=Y), language=EMPTY_LANGUAGE)
    assert recorded(trace, PassRecord("p")) == other
    assert trace != trace.replace(stage=Stage.JOINT)
    assert recorded(trace, PassRecord("p")).history[-1].name == "p"


STRINGS = [
    "  # ",
    'a  # y: "cpu f32[2]"',
    "'",
    '"',
    "'\"",
    "\n",
    "\\",
    "\x85\u2028\x0c",
    "#| ",
    ")",
]


@pytest.mark.parametrize("text", STRINGS)
def test_strings_of_any_content(text):
    out = vector("y", 2, tags=TagSet({"NOTE": text}))
    trace = program(
        call("f", X, text, {text: [text]}, outputs=(out, text), tags=TagSet({"NOTE": text}),
             parent=text, source=Source("f.py", 1, text), context=Context.of(mode=text)),
        inputs=(X, OpaqueProxy("o", text), vector("s", 2, subclass=SubclassInfo("T", (), text))),
        outputs=(out, text),
        context=Context.of(mode="here"),
    )  # fmt: skip
    read_back(trace)


@pytest.mark.parametrize(
    "value",
    [
        1, -1, 0, True, None, ..., 1.5, -0.0, 1e300, 2j, -1j, -1 - 2j, complex(1, -0.0), b"\x00'",
        "", (), [], {}, (1,), ((),),
        [[]], {"a": {1: (None,)}}, {(1, 2): 3}, slice(None), slice(1, None, -1), {"k": slice(0, 1)},
        Constant('float("nan")', float("nan")), Constant("float('inf')", float("inf")),
        Constant('-float("inf")', -float("inf")),
        Constant("math.pi", 3.1), Constant("num.add", MEANING["add"]), Constant("len", len),
    ],
)  # fmt: skip
def test_values_of_every_kind(value):
    made = BoundSymbol(Symbol("num", "f"), (X, value, [value]), (("k", value),), Y)
    context = Context.of(mode=1)
    trace = program(made.replace(context=context), outputs=(value, Y), context=context)
    read_back(trace)


def test_named_constants_bring_their_imports():
    trace = program(call("neg", X, Constant("math.pi", 3.1), outputs=Y), outputs=Y)
    assert "import math\n" in read_back(trace)
    assert roots('torch.device("cpu", math.inf)') == ("math", "torch")
    assert roots('float("nan")') == ()


def test_unnamed_constants_travel_beside_the_text():
    value = object()
    constant = Constant("_object0", value, named=False)
    body = Body((vector("a0", 2),), (), constant)
    region = program(call("f", constant, outputs=Y))
    trace = program(
        call("neg", X, outputs=Y, body=body), call("map", X, Subprogram(region, (0,))),
        call("f", X, constant, context=Context.of(none=constant)), outputs=constant,
    )  # fmt: skip
    assert trace.constants() == {"_object0": value}
    assert "_object0" in trace.names()
    text = str(trace)
    assert Trace.parse(text, language=LANGUAGE, constants={"_object0": value}) == trace
    with pytest.raises(ParseError, match="'_object0' is neither a value"):
        Trace.parse(text, language=LANGUAGE)


def test_two_constants_cannot_have_one_name():
    a, b = (Constant("_c", object(), named=False) for _ in range(2))
    with pytest.raises(TraceError, match="two constants are called '_c'"):
        program(call("f", a, b)).constants()


@pytest.mark.parametrize("outputs", [None, 3, (), [], (None,), (Y,), [Y, (None, [vector("z", 1)])]])
def test_outputs_of_every_shape(outputs):
    read_back(program(call("f", X, outputs=outputs)))


@pytest.mark.parametrize("outputs", [{"k": Y}, (Y, [{"k": 3}]), slice(Y, None)])
def test_outputs_that_no_assignment_takes_apart(outputs):
    with pytest.raises(TraceError, match=r"cannot have a (dict|slice) among its outputs"):
        str(program(call("f", X, outputs=outputs)))


def test_an_output_may_be_an_argument_under_its_own_name():
    a0 = vector("a0", 2)
    inner = call("fill_", a0, 1.0, outputs=a0, effects=Effects(mutates=(0,)))
    made = call("f", X, outputs=X, body=Body((a0,), (inner,), a0), effects=Effects(mutates=(0,)))
    assert "#| x = num.fill_(x, 1.0)" in read_back(program(made, outputs=X))


def test_effects():
    shrunk = vector("x", 1, tags=TagSet({"N": "it's"}))
    after = call("neg", shrunk, outputs=Y)
    effects = Effects(
        (0, 2),
        ((0, shrunk),),
        (Alias(0, "arg", 1, True), Alias(1, "internal")),
        ("random:cpu", "s"),
        marks=(("versions", 2, 3), ("untracked", 0, 1)),
        copies_back=True,
    )
    first = call(
        "f_", X, X, Y.replace(name="w"), outputs=(vector("p", 2), vector("q", 2)), effects=effects
    )
    trace = program(first, after, inputs=(X, Y.replace(name="w")), outputs=(Y, shrunk))
    read_back(trace)
    a0, a2 = vector("a0", 2), vector("a2", 2)
    inner = call("f_", a0, a0, a2, outputs=(vector("_0", 2), vector("_1", 2)),
                 effects=Effects((0,), ((0, vector("a0", 1)),)))  # fmt: skip
    body = Body((a0, a2), (inner,), inner.outputs, ((0, vector("_0", 2)), (2, a2)))
    assert "#updates" not in read_back(trace.replace(calls=(first.replace(body=body), after)))


def test_words_that_python_uses_otherwise():
    made = BoundSymbol(
        Symbol("num", "random_.from"), (X,), (("from", 1), ("to", X), ("not a name", 2)), Y
    )
    text = read_back(program(made, outputs=Y))
    assert "getattr(num.random_, 'from')(x, **{'from': 1}, to=x, **{'not a name': 2})" in text


@pytest.mark.parametrize("name", ["returned", "return_1", "import_", "with_x", "from_", "_x"])
def test_names_that_look_like_statements(name):
    value = vector(name, 2)
    read_back(program(call("neg", X, outputs=value), call("f", value), outputs=value))
    read_back(program(BoundSymbol(Symbol(name, "f"), (X,)), language=Language([dialect(name)])))


def test_symbolic_sizes_and_other_proxies():
    s0, n = SymDim("s0", 4), NumberProxy("n", "int", "s0")
    t = TensorProxy("t", (s0, SymDim("Max(1, 2*s0)")), (SymDim("2*(s0 + 1)"), 1), F32)
    trace = program(
        call("f", t, n, outputs=[NumberProxy("m", "float"), t.replace(name="u")]),
        inputs=(t, n, OpaqueProxy("o", "a.B")),
    )  # fmt: skip
    assert 'strides=(2*(s0 + 1), 1)"' in read_back(trace)


def deep(levels):
    a0, a1, out = vector("a0", 2), vector("a1", 2), vector("_1", 2)
    first = call("neg", a1, outputs=vector("_0", 2))
    if levels == 0:
        return Body((a0, a1), (first, call("add", first.outputs, a0, outputs=out)), out)
    inner = call("f", first.outputs, a0, outputs=out, body=deep(levels - 1), tags=TagSet(["T"]))
    return Body((a0, a1), (first, inner), out)


def test_nested_bodies():
    trace = program(call("f", X, Y, outputs=vector("z", 2), body=deep(3)), inputs=(X, Y))
    text = read_back(trace)
    assert "#| #| #| #| _1_1_1_1 = num.add(_1_1_1_0, _1_1_0)" in text


def test_regions():
    """A region is a function inside the program, before its call, and may have regions itself."""
    a = vector("a", 2)
    inner = Trace(
        (a,), (call("neg", a, outputs=Y, context=Context.of(grad=False)),), (Y,), "cond_fn",
        context=Context.of(grad=True), tags=TagSet(["R"]), language=LANGUAGE,
    )  # fmt: skip
    nested = call("map", a, Subprogram(inner, (0,), returns=True), outputs=(Y,))
    outer = Trace((a,), (nested,), Y, "body_fn", language=LANGUAGE)
    body = Body((vector("a0", 2),), (call("map", vector("a0", 2), Subprogram(inner, (0,))),), ())
    source = Source("model.py", 3, "while x: x = map(x)")
    trace = program(
        call(
            "while",
            X,
            Subprogram(inner, (0,)),
            Subprogram(outer, (None,)),
            outputs=Z,
            source=source,
        ),
        call("f", X, outputs=(), body=body),
        call("same", X, outputs=Y, context=Context.of(grad=1)),
        outputs=Y,
    )
    assert [r.name for r in trace.calls[0].subprograms] == ["cond_fn", "body_fn"]
    text = read_back(trace)
    assert text.startswith(
        """from tj_core.testing.numeric import num
import contextlib


def computation(x):
    #: stage='ACQUIRED'
    # x: "cpu f64[2]"
    # model.py:3: while x: x = map(x)
    def cond_fn(a):
        #: operands=(0,), tags={'R': None}, context={'grad': True}
        # a: "cpu f64[2]"
        with contextlib.nullcontext(False):
            y = num.neg(a)  # y: "cpu f64[2]"
            #: context={'grad': False}
        return (y,)
    def body_fn(a):
        #: operands=(None,)
        # a: "cpu f64[2]"
        def cond_fn(a):
            #: operands=(0,), returns=True, tags={'R': None}, context={'grad': True}
            # a: "cpu f64[2]"
            with contextlib.nullcontext(False):
                y = num.neg(a)  # y: "cpu f64[2]"
                #: context={'grad': False}
            return (y,)
        (y,) = num.map(a, cond_fn)  # y: "cpu f64[2]"
        return y
    z = getattr(num, 'while')(x, cond_fn, body_fn)  # z: "cpu f64[2]"
"""
    )
    assert "#| def cond_fn(a):" in text


def test_context_without_a_speller():
    trace = program(call("neg", X, context=Context.of(gard=1)))
    with pytest.raises(RuleMissingError, match=r"enter context 'gard'\. Did you mean 'grad'\?"):
        str(trace)


def test_blocks_open_where_the_context_changes():
    on, off, both = Context.of(), Context.of(grad=0), Context.of(grad=0, mode=1)
    calls = [
        call("neg", X, outputs=vector(f"v{i}", 2), context=c)
        for i, c in enumerate([on, off, off, both, on])
    ]
    lines = [x for x in read_back(program(*calls)).splitlines() if "with" in x or " = num" in x]
    assert [len(x) - len(x.lstrip()) for x in lines] == [4, 4, 8, 8, 4, 8, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no function in the text"),
        ("def f():\n    g.h()", "no return line"),
        ("def f(x):\n    return x", "no metadata for input 'x'"),
        ("def f():\n    y = g(", "not a call"),
        ("def f():\n    y = g.h()\n    return y", "no metadata for 'y'"),
        ("def f():\n    y = 3\n    return y", "not a call"),
        ("def f():\n    g.h(z)\n    return 1", "'z' is neither a value of the program"),
        ("def f():\n    #: stage='NONE'\n    return 1", "'NONE' is not a stage"),
        ("def f():\n    #| g.h()\n    return 1", "no call before"),
        ("def f():\n    return +", "not an expression"),
        ('def f(x):\n    # x: "what"\n    return 1', "is not the metadata of a value"),
        ("def f():\n    g[0](1)\n    return 1", "is not the name of an operation"),
    ],
)
def test_what_is_no_trace(text, message):
    with pytest.raises(ParseError, match=message):
        Trace.parse(text, language=EMPTY_LANGUAGE)


# ------------------------------------------------------------------------------- running


def run(trace):
    scope = dict(trace.constants())
    exec(str(trace), scope)
    return scope[trace.name]


def test_the_text_runs():
    trace = program(
        call("split", X, 1, outputs=(vector("l", 1), vector("r", 1)), context=Context.of(grad=0)),
        call("neg", vector("r", 1), outputs=Y.replace(shape=(1,))),
        outputs={"k": [vector("l", 1), Y.replace(shape=(1,))]},
    )
    assert run(trace)([1.0, 2.0]) == {"k": [[1.0], [-2.0]]}
    assert generate(trace).function([1.0, 2.0]) == run(trace)([1.0, 2.0])


def test_the_text_runs_with_constants_of_both_kinds():
    trace = program(
        BoundSymbol(Symbol("math", "hypot"),
                    (Constant("math.pi", 3.1), Constant("_c", 4, named=False)),
                    outputs=NumberProxy("h", "float")),
        inputs=(), outputs=NumberProxy("h", "float"),
    )  # fmt: skip
    assert run(trace)() == pytest.approx(5.0862, abs=1e-3)


def test_importable_packages_need_no_dialect():
    symbol = Symbol.parse("os.path.join")
    assert EMPTY_LANGUAGE.resolve(symbol) is os.path.join
    for missing in ("os.path.none", "no_such_package.f", "math.pi"):
        with pytest.raises(RuleMissingError, match="has no implementation"):
            EMPTY_LANGUAGE.resolve(Symbol.parse(missing))
    with pytest.raises(RuleMissingError, match="Did you mean 'num'"):
        LANGUAGE.resolve(Symbol("nun", "add"))


PROGRAM = """
import tj_core as tj
from tj_core.testing.numeric import NullPlugin, NumericPlugin, num
session = tj.Session(
    plugins=[NullPlugin("num.mul", answer=lambda a, b: num.mul(a, b)), NumericPlugin()],
    overrides={"check": 2},
)

@tj.jit(session=session)
def f(x, y):
    left, right = (x * y).split(1)
    w = x.axpy(y, y)
    w.fill_(3.0)
    x.noise()
    return -left, w, {"k": right, "j": {"b": y, "a": x}}

f([1.0, 2.0], [3.0, 4.0])
for trace in tj.last_traces(f):
    print(trace)
print(tj.explain(f))
"""


def printed(tmp_path, seed):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    source = str(Path(tj_core.__file__).parent.parent)
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, str(file)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_text_is_the_same_in_every_process(tmp_path):
    texts = {printed(tmp_path, seed) for seed in ("0", "1", "4242")}
    assert len(texts) == 1
    assert "null.num.mul(x, y)" in texts.pop()


# ------------------------------------------------------------------------------- names


def test_a_dialect_may_define_its_name():
    prelude = ("import tj_core.testing.numeric", "n = tj_core.testing.numeric.num")
    language = Language([Dialect("n", prelude, lambda symbol: MEANING[symbol.name])])
    symbol = Symbol("n", "neg")
    trace = program(BoundSymbol(symbol, (X,), (), Y), outputs=Y, language=language)
    assert read_back(trace).startswith("import tj_core.testing.numeric\nn = tj_core")
    assert run(trace)([1.0]) == [-1.0]


def test_names_are_free_and_stable():
    namer = Namer({"x"})
    wishes = ["x", "x", "y", "y.z", "3d", "", "class", "_0", "_", "slice", "_w"]
    expected = ["x_1", "x_2", "y", "y_z", "v3d", "v", "vclass", "v_0", "v_", "vslice", "v_w"]
    assert [namer(w) for w in wishes] == expected
    assert Namer({"x", "x_1"})("x") == "x_2"


def test_the_names_of_a_program():
    trace = program(call("neg", X, outputs=Y), call("f", Constant("_c", 1, named=False)))
    assert trace.names() == {"x", "y", "_c"}
