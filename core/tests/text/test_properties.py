"""Random programs: what prints reads back, and runs as the program does."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tj_core.edit.bodies import formals
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.proxy import Device, DType, OpaqueProxy, SubclassInfo, SymDim, TensorProxy
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Constant, Context
from tj_core.ir.tags import TagSet
from tj_core.ir.trace import Body, BoundSymbol, Subprogram, Trace
from tj_core.ir.tree import map_tree
from tj_core.source import Source
from tj_core.testing.made_up import LANGUAGE, WORDS, checked, made_up, results

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
SETTINGS = settings(deadline=None, max_examples=60, suppress_health_check=SLOW)


@st.composite
def programs(draw, length=8):
    """A made-up program of up to ``length`` calls."""
    count = draw(st.integers(0, length))
    return made_up(lambda some: draw(st.sampled_from(some)), count)


# ------------------------------------------------------------------------------- any extras

TEXT = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["  # ", "'\"", "\n#| ", "} {", 'x: "cpu f32[2]"', "\\", "\u2028", "a, B, c"]),
)
NAN, INF = float("nan"), float("inf")
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
    st.just(...),
    st.sampled_from(
        [
            Constant('float("nan")', NAN),
            Constant("-float('inf')", -INF),
            Constant("math.pi", 3.1),
            Constant("_object", object(), named=False),
        ]
    ),
)
TAG_SETS = st.dictionaries(
    st.sampled_from("ABC"), st.one_of(st.none(), st.integers(), st.booleans(), TEXT), max_size=2
).map(TagSet)
CONTEXTS = st.dictionaries(st.sampled_from(["grad", "mode"]), st.integers(0, 2) | TEXT).map(
    lambda found: Context.of(**found)
)
DIMS = st.one_of(
    st.integers(0, 5), st.sampled_from([SymDim("s0"), SymDim("Max(1, s0*2)"), SymDim("s1 + 1")])
)
SUBCLASSES = st.builds(
    SubclassInfo,
    st.sampled_from(["Mine", "lib.T.<locals>.S"]),
    st.just((("data", TensorProxy("data", (2,), (1,))), ("o", OpaqueProxy("o", "a.B")))),
    TEXT,
)
METAS = st.fixed_dictionaries(
    {},
    optional={
        "shape": st.lists(DIMS, max_size=3).map(tuple),
        "strides": st.lists(DIMS, max_size=3).map(tuple),
        "dtype": st.sampled_from(
            [DType("bool", 8, "bool"), DType("float32", 32, "float"), DType("odd", 3, "kind")]
        ),
        "device": st.sampled_from([Device("cuda", 1), Device("meta")]),
        "requires_grad": st.booleans(),
        "flags": st.sampled_from([("conj",), ("conj", "neg")]),
        "subclass": SUBCLASSES,
    },
)


class Ref(int):
    """A reference, in a tree of arguments, to one of the existing values."""


def _trees():
    leaf = SCALARS | st.integers(0, 20).map(Ref)
    return st.recursive(
        leaf,
        lambda tree: st.one_of(
            st.lists(tree, max_size=3),
            st.lists(tree, max_size=3).map(tuple),
            st.dictionaries(TEXT, tree, max_size=2),
            st.builds(slice, leaf, leaf, leaf),
        ),
        max_leaves=4,
    )


TREES = _trees()
EXTRAS = st.fixed_dictionaries(
    {
        "more": st.lists(TREES, max_size=2),
        "kwargs": st.dictionaries(st.sampled_from(["k", "from", "not a name"]), TREES, max_size=2),
        "mutates": st.sets(st.integers(0, 20), max_size=2),
        "identical": st.booleans(),
        "ordered": st.lists(TEXT, max_size=1).map(tuple),
        "tags": TAG_SETS,
        "context": CONTEXTS,
        "parent": st.none() | TEXT.filter(bool),
        "executor": st.sampled_from([None, "e", "other"]),
        "source": st.none() | st.builds(Source, TEXT, st.integers(0, 9), TEXT, TEXT, TEXT),
        "body": st.integers(-2, 2),
        "region": st.integers(0, 3),
    }
)


def filled(tree, values):
    """``tree`` with values for its references."""
    return map_tree(lambda ref: values[ref % len(values)] if values else 0, tree, Ref)


MEDIUM, SMALL = programs(length=5), programs(length=2)


@st.composite
def decorated(draw, programs=MEDIUM, inner=True):
    """A well-formed program, without meaning, with everything that a trace can hold."""
    trace = draw(programs)
    context = draw(CONTEXTS)
    new = {}

    def proxy(p):
        if p.name not in new:
            new[p.name] = p.replace(tags=draw(TAG_SETS), **draw(METAS))
        return new[p.name]

    inputs = tuple(map(proxy, trace.inputs))
    calls = []
    for made in trace.calls:
        values = list(new.values())
        made = made.map_proxies(proxy).replace(body=None)
        calls.append(draw(decorated_calls(made, values, context, inner)))
    outputs = filled(draw(TREES), list(new.values()))
    tags = draw(st.sampled_from([TagSet(), TagSet({"A": "x"})]))
    name = draw(st.sampled_from(["computation", "forward"]))
    stage = draw(st.sampled_from(Stage))
    return Trace(inputs, tuple(calls), outputs, name, stage, context, tags, language=LANGUAGE)


@st.composite
def decorated_calls(draw, made, values, context, inner):
    """``made`` with more arguments, a body, regions, effects, tags, context, ..."""
    extra = draw(EXTRAS)
    made = made.replace(
        args=(*made.args, *filled(extra["more"], values)),
        kwargs=tuple(filled(extra["kwargs"], values).items()),
        tags=extra["tags"],
        context=extra["context"].over(context),
        parent=extra["parent"],
        executor=extra["executor"],
        source=extra["source"],
    )
    count = len(made.flat_args)
    effects = Effects(
        tuple(sorted({i % count for i in extra["mutates"]})),
        aliases=(Alias(0, "arg", 0, extra["identical"]),) if made.flat_outs else (),
        ordered=extra["ordered"],
    )
    made = made.replace(effects=effects)
    if extra["body"] >= 0:
        made = made.replace(body=draw(bodies(made, extra["body"])))
    if inner and extra["region"] == 0:
        made = draw(with_regions(made))
    return made


@st.composite
def with_regions(draw, made):
    """``made`` with an operand program or two, used once or twice."""
    count = len(made.flat_args)
    regions = []
    for name in draw(st.sampled_from([["fn"], ["fn", "other"]])):
        program = draw(decorated(SMALL, inner=False)).replace(name=name, stage=Stage.ACQUIRED)
        places = draw(st.lists(st.integers(0, count - 1), max_size=2)) if count else []
        more = tuple(made.flat_args[i].replace(name=f"op{n}") for n, i in enumerate(places))
        operands = (*(None for _ in program.inputs), *places)
        program = program.replace(inputs=program.inputs + more, outputs=(program.outputs, *more))
        regions.append(Subprogram(program, operands))
    return made.replace(args=(*made.args, *regions, regions[0]))


STEPS = st.fixed_dictionaries(
    {
        "args": st.lists(SCALARS | st.integers(0, 20).map(Ref), max_size=3),
        "constant": SCALARS,
        "context": CONTEXTS,
        "tags": TAG_SETS,
        "value_tags": TAG_SETS,
    }
)


@st.composite
def bodies(draw, made, depth):
    """A body for ``made``, whose calls may have bodies."""
    inputs = tuple(formals(made).values())
    values, calls = list(inputs), []
    for count, out in enumerate(made.flat_outs):
        step = draw(STEPS)
        value = out.replace(name=f"_{count}", tags=step["value_tags"])
        inner = BoundSymbol(
            made.symbol, tuple(filled(step["args"], values)), (), (value, step["constant"]),
            context=step["context"], tags=step["tags"],
        )  # fmt: skip
        if depth:
            inner = inner.replace(body=draw(bodies(inner, depth - 1)))
        calls.append(inner)
        values.append(value)
    left = iter(values[len(inputs) :])
    outputs = map_tree(lambda p: next(left), made.outputs, TensorProxy)
    updates = tuple((i, values[-1]) for i in made.effects.mutates)
    return Body(inputs, tuple(calls), outputs, updates)


# ------------------------------------------------------------------------------- text


@SETTINGS
@given(decorated())
def test_what_prints_reads_back(trace):
    checked(trace, level=1)
    text = str(trace)
    found = Trace.parse(text, language=LANGUAGE, constants=trace.constants())
    assert found == trace
    assert str(found) == trace.python(sources=False)


@SETTINGS
@given(programs())
def test_the_text_runs_as_the_program_does(trace):
    checked(trace)
    scope = {}
    source = str(trace).replace("from tj_core.testing.numeric import num", "")
    scope["num"] = type("num", (), {k: staticmethod(v) for k, v in WORDS.items()})
    exec(source, scope)
    arguments = [[1.0, 2.0, -3.0, 0.5], [0.25, -1.0, 2.0, 3.0]]
    assert (scope["computation"](*arguments), arguments) == results(trace)
