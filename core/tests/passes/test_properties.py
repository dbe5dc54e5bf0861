"""Random programs: properties of every trace, and of every pass on every trace."""

from __future__ import annotations

import copy

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tj_core.compile.codegen import generate
from tj_core.contract.dialects import Dialect
from tj_core.contract.executors import Claim, Decline, Executor
from tj_core.contract.expansion import Expanded, bind_outputs
from tj_core.contract.rules import RuleTable
from tj_core.edit.bodies import formals
from tj_core.edit.rewrite import Replacement, rewrite
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.names import Namer
from tj_core.ir.proxy import Device, DType, OpaqueProxy, SubclassInfo, SymDim, TensorProxy
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Constant, Context
from tj_core.ir.tags import Tag, TagRegistry, TagSet
from tj_core.ir.trace import Body, BoundSymbol, Subprogram, Trace
from tj_core.ir.tree import map_tree
from tj_core.passes.claim import claim
from tj_core.passes.dce import dce
from tj_core.source import Source
from tj_core.testing.numeric import MEANING, call, expansions, vector
from tj_core.text.language import Language
from tj_core.verify.verifier import verify

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("tj", deadline=None, max_examples=60, suppress_health_check=SLOW)
settings.load_profile("tj")

TAGS = TagRegistry(
    ("test", tag)
    for tag in (
        Tag("A", carriers=frozenset({"proxy", "call", "trace"})),
        Tag("B", through_views=True),
        Tag("C", into_body=False, to_replacement=False),
    )
)

# ------------------------------------------------------------------------------- a dialect


def poly(x, y):
    """Two levels of body: ``x*(y*y + y) + y``, and an output that is an argument."""
    inner = [a * a + a for a in y]
    return [a * b + c for a, b, c in zip(x, inner, y, strict=True)], x


WORDS = {**MEANING, "poly": poly, "none": lambda x: None}
expand = RuleTable("expand") | expansions


@expand.register("num.poly")
def _poly(given_call):
    inputs = formals(given_call)
    x, y = (inputs[p.name] for p in given_call.flat_args)
    args = (y, y, y), (x, vector("_0", x.shape[0]), y)
    calls = []
    for i, (a, b, c) in enumerate(args):
        bare = call("axpy", a, b, c)
        calls.append(bind_outputs(bare, expand.require(bare).value(bare), lambda _, i=i: f"_{i}"))
    out = calls[1].outputs
    alias = Effects(aliases=(Alias(1, "arg", 0, True),))
    body = Body(tuple(inputs.values()), tuple(calls), (out, x))
    return Expanded((out.replace(name="_0"), x.replace(name="_1")), alias, body)


@expand.register("num.none")
def _none(given_call):
    return Expanded(None)


def _speller(value):
    return "contextlib.nullcontext()"


LANGUAGE = Language(
    [Dialect("num", ("from tj_core.testing.numeric import num",), lambda s: WORDS[s.name])],
    {"grad": _speller, "mode": _speller},
)
ARITY = {"add": 2, "mul": 2, "neg": 1, "axpy": 3, "poly": 2, "same": 1, "noise": 1, "fill_": 1,
         "split": 1, "none": 1}  # fmt: skip
SIZE = 4


@st.composite
def programs(draw, mutation=True, length=8):
    """A program of the dialect, expanded: two inputs, some calls, some of the values returned."""
    namer = Namer(set())
    values = [vector(namer(n), SIZE) for n in ("x", "y")]
    inputs, calls = tuple(values), []
    names = [n for n in ARITY if mutation or n != "fill_"]
    for _ in range(draw(st.integers(0, length))):
        name = draw(st.sampled_from(names))
        sized = [v for v in values if v.shape == (SIZE,)]
        args = [draw(st.sampled_from(sized)) for _ in range(ARITY[name])]
        more = {"fill_": (2.0,), "split": (draw(st.integers(1, SIZE - 1)),)}.get(name, ())
        bare = call(name, *args, *more, source=Source("f.py", len(calls) + 1, f"call {name}"))
        bound = bind_outputs(bare, expand.require(bare).value(bare), lambda i: namer("t"))
        calls.append(bound)
        values += bound.flat_outs
    outputs = draw(st.lists(st.sampled_from(values), max_size=4))
    return Trace(inputs, tuple(calls), {"r": (outputs, None)}, language=LANGUAGE)


def checked(trace, level=2):
    verify(trace, level=level, tags=TAGS, expand=expand)
    return trace


def results(trace, implementations=None):
    """The results of the program, and its inputs after the run."""
    arguments = [[1.0, 2.0, -3.0, 0.5], [0.25, -1.0, 2.0, 3.0]]
    return copy.deepcopy(generate(trace, implementations).function(*arguments)), arguments


def rules(rule, *keys):
    table = RuleTable("rules")
    table.register(*keys)(rule)
    return table


def apply(trace, rule, *keys, **more):
    return rewrite(trace, rules(rule, *keys), expand=expand, tags=TAGS, name="pass", **more)


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


@given(decorated())
def test_what_prints_reads_back(trace):
    checked(trace, level=1)
    text = str(trace)
    found = Trace.parse(text, language=LANGUAGE, constants=trace.constants())
    assert found == trace
    assert str(found) == trace.python(sources=False)


@given(programs())
def test_the_text_runs_as_the_program_does(trace):
    checked(trace)
    scope = {}
    source = str(trace).replace("from tj_core.testing.numeric import num", "")
    scope["num"] = type("num", (), {k: staticmethod(v) for k, v in WORDS.items()})
    exec(source, scope)
    arguments = [[1.0, 2.0, -3.0, 0.5], [0.25, -1.0, 2.0, 3.0]]
    assert (scope["computation"](*arguments), arguments) == results(trace)


# ------------------------------------------------------------------------------- passes


@given(programs())
def test_dce_keeps_the_values(trace):
    after = checked(dce(trace))
    assert results(after) == results(trace)
    assert dce(after) is after
    assert {id(c) for c in after.calls} <= {id(c) for c in trace.calls}


@given(programs())
@pytest.mark.parametrize("rule", [lambda c, edit: None, lambda c, edit: Replacement((c,))])
def test_identity_rules_change_nothing(rule, trace):
    assert apply(trace, rule, "*") is trace


@given(programs(), st.sampled_from(["num.poly", "num.axpy", "*"]))
def test_decomposition_keeps_the_values(trace, key):
    def rule(c, edit):
        return edit.inline() if edit.can_inline() and c.body.calls else None

    before, after = None, trace
    while before is not after:
        before, after = after, checked(apply(after, rule, key, into_bodies=False))
    assert results(after) == results(trace)
    if key == "*":
        assert {c.symbol.name for c in after.calls}.isdisjoint({"poly", "axpy"})
    kept = {id(c) for c in trace.calls if c.symbol.name not in ("poly", "axpy")}
    if not any(c.symbol.name == "poly" for c in trace.calls):  # it hands an argument on
        assert kept <= {id(c) for c in after.calls}


def everything(*symbols):
    """An executor for ``symbols``, and one for all the rest."""
    mine: RuleTable[Claim] = RuleTable("claim")
    for symbol in symbols:
        mine.set(symbol, Claim(WORDS[symbol.partition(".")[2]]))
    rest: RuleTable[Claim] = RuleTable("claim")
    rest.set("num.*", Claim(None, lambda c: not c.symbol.edited or Decline("edited")))
    return [Executor("mine", mine), Executor("python", rest, fallback=True)]


SYMBOLS = st.sets(st.sampled_from([f"num.{n}" for n in ARITY]))


@given(programs(), SYMBOLS)
def test_claiming_keeps_the_values(trace, symbols):
    claimed = claim(trace, everything(*sorted(symbols)), TAGS)
    after = checked(claimed.trace)
    assert results(after, claimed.implementations) == results(trace)
    for c in after.calls:
        assert (c.symbol.namespace == "mine") == (c.executor == "mine")
        assert c.executor in ("mine", "python")
        assert c.symbol.qualname not in symbols
    text = str(after)
    assert Trace.parse(text, language=LANGUAGE) == after


def swap(c, edit):
    """The same value by a new call."""
    return Replacement((edit.call(c.symbol, *c.args[::-1], outputs=(c.outputs.name,)),))


@given(programs(), SYMBOLS)
def test_edited_bodies_keep_the_values(trace, symbols):
    after = checked(apply(trace, swap, "num.mul", "num.add"))
    edited = [c for c in trace.calls if c.symbol.name in ("mul", "add", "axpy", "poly")]
    assert (after is trace) == (not edited)
    for old, new in zip(trace.calls, after.calls, strict=True):
        composite = old.symbol.name in ("axpy", "poly")
        assert new.symbol == (old.symbol.as_edited() if composite else old.symbol)
        assert new.outputs is old.outputs or old.symbol.name in ("mul", "add")
        assert (new is old) == (old not in edited)
    claimed = claim(after, everything(*sorted(symbols)), TAGS)
    checked(claimed.trace)
    assert results(claimed.trace, claimed.implementations) == results(trace)
    assert not any(c.symbol.edited for c in claimed.trace.calls)


@given(programs(mutation=False))
def test_merging_equal_calls_keeps_the_values(trace):
    def cse():
        seen = {}

        def rule(c, edit):
            if c.symbol.name in ("noise", "none", "split"):
                return None
            old = seen.setdefault((c.symbol, c.args), c)
            if old is c:
                return None
            pairs = zip(c.flat_outs, old.flat_outs, strict=True)
            return Replacement((), {a.name: b for a, b in pairs})

        return rule

    after = checked(apply(trace, cse(), "*", into_bodies=False))
    assert results(after) == results(trace)
    assert checked(apply(after, cse(), "*", into_bodies=False)) is after
    claimed = claim(after, everything("num.mul"), TAGS)
    assert results(checked(claimed.trace), claimed.implementations) == results(trace)


@given(programs(mutation=False))
def test_passing_views_on_keeps_the_values(trace):
    """Values become other values, arguments coincide, bodies follow."""
    after = checked(
        apply(trace, lambda c, e: Replacement((), {c.outputs.name: c.args[0]}), "num.same")
    )
    assert results(after) == results(trace)
    assert not any(c.symbol.name == "same" for c in after.calls)
    text = str(after)
    assert Trace.parse(text, language=LANGUAGE) == after


@given(programs(mutation=False))
def test_changed_inputs_expand_again(trace):
    """Metadata of all later calls is derived again."""
    gradients = {p.name: p.replace(requires_grad=True) for p in trace.inputs}
    first = call("neg", trace.inputs[0], outputs=vector("n", SIZE))
    uses = tuple(
        c.map_proxies(lambda p: first.outputs if p == trace.inputs[0] else p) for c in trace.calls
    )
    outputs = {"r": [p for c in uses for p in c.flat_outs]}
    trace = trace.replace(calls=(first, *(again(c) for c in uses)), outputs=outputs)
    checked(trace)

    def rule(c, edit):
        if c is not first:
            return None
        made = edit.call("num.neg", gradients["x"], outputs=("n",))
        return Replacement((made,))

    after = apply(trace, rule, "num.neg").replace(inputs=tuple(gradients.values()))
    after = after.replace(
        calls=tuple(c.map_proxies(lambda p: gradients.get(p.name, p)) for c in after.calls)
    )
    names = [p.name for c in trace.calls for p in c.flat_outs]
    assert [p.name for c in after.calls for p in c.flat_outs] == names
    assert results(after) == results(trace)
    assert after.calls[0].outputs.requires_grad


def again(made):
    """``made``, expanded for its present arguments."""
    names = [p.name for p in made.flat_outs]
    return bind_outputs(made, expand.require(made).value(made), lambda i: names[i])


# ------------------------------------------------------------------------------- tags


@given(programs(mutation=False), st.data())
def test_tags_stay_on_the_values_that_stay(trace, data):
    new = {}

    def proxy(p):
        tags = st.sets(st.sampled_from("AB")).map(sorted).map(TagSet)
        return new.setdefault(p.name, p.replace(tags=data.draw(tags)))

    trace = trace.replace(
        inputs=tuple(map(proxy, trace.inputs)),
        calls=tuple(c.map_proxies(proxy) for c in trace.calls),
        outputs=map_tree(lambda p: proxy(p) if isinstance(p, TensorProxy) else p, trace.outputs),
    )
    checked(trace)

    def inline(c, edit):
        return edit.inline() if edit.can_inline() else None

    passes = {
        "dce": dce,
        "claim": lambda t: claim(t, everything("num.mul"), TAGS).trace,
        "decompose": lambda t: apply(t, inline, "num.axpy", "num.poly"),
        "bodies": lambda t: apply(t, swap, "num.mul"),
    }
    for name in data.draw(st.permutations(sorted(passes))):
        after = checked(passes[name](trace))
        before = {p.name: p.tags for c in trace.calls for p in c.flat_outs}
        for p in (*after.inputs, *(p for c in after.calls for p in c.flat_outs)):
            assert set(before.get(p.name, ())) <= set(p.tags), name
        trace = after
        if name == "claim":
            break
