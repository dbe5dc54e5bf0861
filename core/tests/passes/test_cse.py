"""Common subexpressions: merged where it cannot be observed, kept apart elsewhere."""

import os

import pytest
import tj_core as tj
from hypothesis import given, settings
from hypothesis import strategies as st
from tj_core.analysis.alias import alias_facts
from tj_core.compile.codegen import generate
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.expansion import Expanded, bind_outputs
from tj_core.contract.rules import RuleTable
from tj_core.edit.bodies import formals
from tj_core.host.session import Session
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import FUNCTIONAL, Constant, Context
from tj_core.ir.tags import Tag, TagRegistry, TagSet
from tj_core.ir.trace import Body, Trace
from tj_core.passes.claim import claim
from tj_core.passes.cse import cse
from tj_core.testing.numeric import NumericPlugin, call, expansions, vector
from tj_core.text.language import EMPTY_LANGUAGE
from tj_core.verify.verifier import verify

COUNT = 500 if os.environ.get("TJ_FULL") == "1" else 150
TAGS = TagRegistry(
    [
        ("test", Tag("A", group="letter")),
        ("test", Tag("B", group="letter")),
        ("test", Tag("SOFT", group="letter", strength="soft")),
        ("test", Tag("FREE")),
    ]
)
X, Y = vector("x", 2), vector("y", 2)


EXPANSIONS = RuleTable("expand") | expansions


@EXPANSIONS.register("num.view")
def _view(given_call):
    """A view: the argument's memory as another object."""
    out = given_call.args[0].replace(name="_0", tags=TagSet())
    return Expanded(out, Effects(aliases=(Alias(0, "arg"),)))


@EXPANSIONS.register("num.curious")
def _curious(given_call):
    """An operation of two calls, one of which it leaves out if its arguments are one object."""
    inputs = formals(given_call)
    a, b = (inputs[p.name] for p in given_call.flat_args)
    calls = (
        call("neg", b, outputs=vector("_0", 2)),
        call("add", a, vector("_0", 2), outputs=vector("_1", 2)),
    )
    return Expanded(vector("_0", 2), body=Body(tuple(inputs.values()), calls, vector("_1", 2)))


def made(name, *args, out, tags=(), value=(), expand=EXPANSIONS, **more):
    plain = call(name, *args, tags=TagSet(tags), **more)
    bound = bind_outputs(plain, expand.require(plain).value(plain), lambda i: f"{out}{i or ''}")
    first = bound.flat_outs[0]
    return bound.map_proxies(lambda p: p.replace(tags=TagSet(value)) if p is first else p)


def view(of, out):
    """A call whose result shares its argument's memory."""
    return made("view", of, out=out)


def after(*calls, outputs, inputs=(X, Y), stage=Stage.ACQUIRED):
    trace = Trace(inputs, calls, outputs, stage=stage, language=EMPTY_LANGUAGE)
    verify(trace, level=2, tags=TAGS, expand=EXPANSIONS)
    found = cse(trace, TAGS)
    verify(found, level=2, tags=TAGS, expand=EXPANSIONS)
    return trace, found


def merged(*calls, outputs, **more):
    """The names of the merged calls."""
    before, found = after(*calls, outputs=outputs, **more)
    gone = {c.label for c in before.calls} - {c.label for c in found.calls}
    assert (found is before) is not bool(gone)
    return gone


def test_equal_calls_become_one():
    a, b = made("neg", X, out="a"), made("neg", X, out="b")
    c, d = made("add", a.outputs, Y, out="c"), made("add", b.outputs, Y, out="d")
    e = made("mul", c.outputs, d.outputs, out="e")
    _, found = after(a, b, c, d, e, outputs=(e.outputs,))
    assert found.calls == (a, c, e.replace(args=(c.outputs, c.outputs)))
    assert found.calls[0] is a
    (record,) = found.history
    assert [(x.call, x.rule) for x in record.changes] == [
        ("b", "computed by a"),
        ("d", "computed by c"),
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("add", X, Y), ("add", Y, X)),
        (("add", X, Y), ("mul", X, Y)),
        (("split", X, 1), ("split", X, True)),
    ],
)
def test_other_arguments_are_other_values(first, second):
    a, b = made(*first, out="a"), made(*second, out="b")
    last = made("neg", b.flat_outs[0], out="z")
    assert not merged(a, b, last, outputs=(a.flat_outs[0], last.outputs))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1.0, 1.0, True),
        (0.0, -0.0, False),
        (1, 1.0, False),
        (1, True, False),
        (Constant('float("nan")', float("nan")), Constant('float("nan")', float("nan")), True),
        (Constant("_f", object(), named=False), Constant("_f", object(), named=False), False),
        ((1, 2), [1, 2], False),
        (slice(0, 1), slice(0, 1), True),
        (slice(0, 1), slice(0, 1.0), False),
        (1j, complex(0.0, 1.0), True),
        (complex(0.0, 0.0), complex(-0.0, 0.0), False),
    ],
)
def test_constants_are_told_apart_by_type_and_bits(one, other, same):
    def scaled(constant, out):
        return call("scale", X, constant, outputs=vector(out, 2))

    a, b = scaled(one, "a"), scaled(other, "b")
    z = made("add", a.outputs, b.outputs, out="z")
    trace = Trace((X,), (a, b, z), (z.outputs,), language=EMPTY_LANGUAGE)
    assert (len(cse(trace, TAGS).calls) == 2) is same


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("one", "other", "same"), [(2, 2, True), (2, 3, False), (0.0, -0.0, False), (1, True, False)]
)
def test_bodies_with_other_constants_compute_other_things(one, other, same, deep):
    """A call of a backward has no constants among its arguments, only in its body."""

    def backward(constant, out):
        a0, result = vector("a0", 2), vector("_0", 2)
        body = Body((a0,), (call("scale", a0, constant, outputs=result),), result)
        if deep:
            body = Body((a0,), (call("f.backward", a0, outputs=result, body=body),), result)
        return call("g.backward", X, outputs=vector(out, 2), body=body)

    calls = [backward(one, "a"), backward(other, "b"), backward(other, "c")]
    sums = made("add", calls[0].outputs, calls[1].outputs, out="s")
    total = made("add", sums.outputs, calls[2].outputs, out="z")
    trace = Trace((X,), (*calls, sums, total), (total.outputs,), language=EMPTY_LANGUAGE)
    gone = {c.label for c in trace.calls} - {c.label for c in cse(trace, TAGS).calls}
    assert gone == ({"b", "c"} if same else {"c"})


def test_random_calls_stay_two():
    a, b = made("noise", X, out="a"), made("noise", X, out="b")
    z = made("add", a.outputs, b.outputs, out="z")
    assert not merged(a, b, z, outputs=(z.outputs,))


def test_what_the_program_returns_stays_two_objects():
    a, b = made("neg", X, out="a"), made("neg", X, out="b")
    assert not merged(a, b, outputs=(a.outputs, b.outputs))
    z = made("neg", b.outputs, out="z")
    assert merged(a, b, z, outputs=(a.outputs, z.outputs)) == {"b"}


def test_returned_views_of_two_values_do_not_become_views_of_one():
    a, b = made("neg", X, out="a"), made("neg", X, out="b")
    va, vb = view(a.outputs, "va"), view(b.outputs, "vb")
    trace = Trace((X,), (a, b, va, vb), (va.outputs, vb.outputs), language=EMPTY_LANGUAGE)
    assert cse(trace, TAGS) is trace
    inside = made("neg", vb.outputs, out="z")
    trace = Trace(
        (X,), (a, b, va, vb, inside), (va.outputs, inside.outputs), language=EMPTY_LANGUAGE
    )
    assert [c.label for c in cse(trace, TAGS).calls] == ["a", "va", "z"]


def test_an_object_that_comes_back_from_another_call_is_returned_too():
    a, b = view(X, "a"), view(X, "b")
    c = made("same", b.outputs, out="c")
    assert not merged(a, b, c, outputs=(a.outputs, c.outputs))
    d, e = made("same", a.outputs, out="d"), made("same", a.outputs, out="e")
    assert merged(a, d, e, outputs=(d.outputs, e.outputs)) == {"e"}


def test_what_autograd_saves_is_not_the_callers_to_write():
    w = vector("w", 2, requires_grad=True)
    a, b = made("neg", X, out="a"), made("neg", X, out="b")
    uses = made("mul", w, b.outputs, out="y")
    found = {"inputs": (X, w), "outputs": (a.outputs, uses.outputs)}
    assert not merged(a, b, uses, **found)
    assert merged(a, b, uses, **found, stage=Stage.SPLIT) == {"b"}
    c = made("mul", w, a.outputs, out="c")
    z = made("add", c.outputs, uses.outputs, out="z")
    assert merged(a, b, c, uses, z, inputs=(X, w), outputs=(z.outputs,)) == {"b"}


def test_what_a_joint_trace_returns_keeps_its_call():
    a, b, c = (made("neg", X, out=name) for name in "abc")
    gradient = made("mul", Y, a.outputs, out="g")
    whole = (a, b, c, gradient)
    assert merged(*whole, outputs=((b.outputs,), (gradient.outputs,)), stage=Stage.JOINT) == {"c"}
    assert merged(*whole, outputs=((), (gradient.outputs,)), stage=Stage.JOINT) == {"b", "c"}


def test_a_call_that_may_look_who_its_arguments_are_keeps_two():
    a, b = made("neg", X, out="a"), made("neg", X, out="b")
    z = made("curious", a.outputs, b.outputs, out="z")
    assert not merged(a, b, z, outputs=(z.outputs,))
    c = made("neg", X, out="c")
    z = made("curious", a.outputs, c.outputs, out="z")
    assert merged(a, b, c, z, outputs=(b.outputs, z.outputs)) == {"b"}


def test_a_call_that_may_look_knows_objects_by_all_their_names():
    a, b = made("neg", X, out="a"), made("neg", X, out="b")
    same = made("same", a.outputs, out="s")
    z = made("curious", b.outputs, same.outputs, out="z")
    assert not merged(a, b, same, z, outputs=(z.outputs,))


def test_a_call_that_writes_two_objects_keeps_two():
    a, b = made("neg", X, out="a"), made("neg", X, out="b")
    z = made("add", a.outputs, b.outputs, out="z")
    assert merged(a, b, z, outputs=(z.outputs,)) == {"b"}
    z = z.replace(symbol=z.symbol.as_variant(FUNCTIONAL))
    assert not merged(a, b, z, outputs=(z.outputs,))


def test_a_result_that_stands_for_a_returned_one_is_returned():
    inner, b, c = (made("neg", X, out=name) for name in "abc")
    z = made("neg", inner.outputs, out="z")
    assert merged(inner, b, c, z, outputs=(b.outputs, c.outputs, z.outputs)) == {"b"}


@pytest.mark.parametrize("written", ["x", "a", "b", "view of b"])
def test_nothing_is_merged_around_memory_that_is_written(written):
    a, b = made("neg", X, out="a"), made("neg", X, out="b")
    v = view(b.outputs, "v")
    target = {"x": X, "a": a.outputs, "b": b.outputs, "view of b": v.outputs}[written]
    w = made("fill_", target, 3.0, out="w")
    z = made("add", a.outputs, b.outputs, out="z")
    trace = Trace((X,), (a, b, v, w, z), (z.outputs,), language=EMPTY_LANGUAGE)
    assert cse(trace, TAGS) is trace


def test_a_written_input_may_overlap_the_others():
    w = made("fill_", Y, 3.0, out="w")
    a, b = made("neg", X, out="a"), made("neg", X, out="b")
    z = made("add", a.outputs, b.outputs, out="z")
    assert not merged(a, w, b, z, outputs=(z.outputs,))


def test_unknown_side_effects_may_write_what_they_take():
    a = made("neg", X, out="a")
    u = call("unknown", a.outputs, outputs=None, effects=Effects(ordered=("side_effect",)))
    b = made("neg", X, out="b")
    c, d = made("neg", Y, out="c"), made("neg", Y, out="d")
    z = made("add", b.outputs, d.outputs, out="z")
    trace = Trace((X, Y), (a, u, b, c, d, z), (z.outputs, c.outputs), language=EMPTY_LANGUAGE)
    assert [x.label for x in cse(trace, TAGS).calls] == ["a", "num.unknown", "b", "c", "z"]


def test_a_call_that_writes_is_never_merged():
    a = made("neg", X, out="a")
    calls = [made("fill_", a.outputs, 3.0, out=f"w{i}") for i in range(2)]
    assert not merged(a, *calls, outputs=(calls[1].outputs,))


def test_gradients_would_be_summed_in_another_order():
    x = vector("x", 2, requires_grad=True)
    a, b = made("neg", x, out="a"), made("neg", x, out="b")
    z = made("add", a.outputs, b.outputs, out="z")
    assert not merged(a, b, z, outputs=(z.outputs,), inputs=(x,))
    assert merged(a, b, z, outputs=(z.outputs,), inputs=(x,), stage=Stage.SPLIT) == {"b"}


def test_other_contexts_are_other_calls():
    a = made("neg", X, out="a", context=Context.of(mode=1))
    b = made("neg", X, out="b", context=Context.of(mode=2))
    z = made("add", a.outputs, b.outputs, out="z", context=Context.of(mode=1))
    trace = Trace(
        (X,), (a, b, z), (z.outputs,), context=Context.of(mode=1), language=EMPTY_LANGUAGE
    )
    assert cse(trace, TAGS) is trace


@pytest.mark.parametrize(
    ("elder", "younger", "found"),
    [
        ((), ("A",), {"A"}),
        (("A",), (), {"A"}),
        (("A",), ("A",), {"A"}),
        (("SOFT",), ("A",), {"A"}),
        (("A",), ("SOFT", "FREE"), {"A", "FREE"}),
        (("A",), ("B",), None),
    ],
)
def test_tags_of_values_and_calls_merge_or_keep_the_calls_apart(elder, younger, found):
    for where in ("tags", "value"):
        a = made("neg", X, out="a", **{where: elder})
        b = made("neg", X, out="b", **{where: younger})
        z = made("add", a.outputs, b.outputs, out="z")
        before, trace = after(a, b, z, outputs=(z.outputs,))
        if found is None:
            assert trace is before
            continue
        one = trace.calls[0]
        carrier = one if where == "tags" else one.outputs
        assert set(carrier.tags) == found
        assert trace.calls[1].args[0].tags == one.outputs.tags


@pytest.mark.parametrize("elder", [(), ("BACKWARD",)])
def test_a_call_of_the_forward_pass_stays_one(elder):
    a, b = made("neg", X, out="a", tags=elder), made("neg", X, out="b", tags=("BACKWARD", "A"))
    _, trace = after(a, b, made("add", a.outputs, b.outputs, out="z"), outputs=(vector("z", 2),))
    assert set(trace.calls[0].tags) == {*elder, "A"}


def test_three_conflicting_two_by_two():
    a, b, c = (made("neg", X, out=n, value=[*v]) for n, v in [("a", ""), ("b", "A"), ("c", "B")])
    z = made("add", b.outputs, c.outputs, out="z")
    y = made("add", a.outputs, z.outputs, out="u")
    assert merged(a, b, c, z, y, outputs=(y.outputs,)) == {"b"}


def test_parents_follow():
    a, b = made("neg", X, out="a"), made("neg", X, out="b")
    child = made("neg", Y, out="c", parent="b")
    z = made("add", b.outputs, child.outputs, out="z")
    _, found = after(a, b, child, z, outputs=(z.outputs,))
    assert next(c for c in found.calls if c.label == "c").parent == "a"


def test_it_runs_by_default_and_can_be_left_out():
    def f(x):
        return -x * (-x)

    for on in (True, False):
        session = Session(plugins=[NumericPlugin()], overrides={"cse": on})
        jitted = tj.jit(f, session=session)
        assert jitted([1.0, 2.0]) == [1.0, 4.0]
        assert len(tj.last_trace(jitted).calls) == (2 if on else 3)


# ------------------------------------------------------------------------------- alias analysis


def test_roots_and_writes():
    a = made("neg", X, out="a")
    v = view(a.outputs, "v")
    w = made("fill_", v.outputs, 1.0, out="w")
    facts = alias_facts(Trace((X, Y), (a, v, w), (v.outputs, X), language=EMPTY_LANGUAGE))
    assert dict(facts.roots) == {"x": "x", "y": "y", "a": "a", "v": "a", "w": "a"}
    assert dict(facts.objects) == {"x": "x", "y": "y", "a": "a", "v": "v", "w": "v"}
    assert facts.mutated == {"a"}
    assert facts.escaping == {"a", "x"}


# ------------------------------------------------------------------------------- any program


class Vec:
    """A vector that can share memory with another vector, as tensors do."""

    def __init__(self, data):
        self.data = data

    def new(self, fn, *others):
        return Vec([fn(*v) for v in zip(self.data, *(o.data for o in others), strict=True)])

    def fill_(self, value):
        self.data[:] = [value] * len(self.data)
        return self


WORDS = {
    "neg": lambda x: x.new(lambda a: -a),
    "add": lambda x, y: x.new(lambda a, b: a + b, y),
    "mul": lambda x, y: x.new(lambda a, b: a * b, y),
    "same": lambda x: x,
    "view": lambda x: Vec(x.data),
    "fill_": Vec.fill_,
    "curious": lambda x, y: x.new(lambda a, b: a - b, y) if x is y else x.new(lambda a, b: a, y),
}


@st.composite
def programs(draw):
    """Traces over two inputs with writes, views, aliases and repeated work."""
    values, calls = [X, Y], []
    for i in range(draw(st.integers(2, 12))):
        name = draw(st.sampled_from([*WORDS]))
        count = 2 if name in ("add", "mul", "curious") else 1
        args = [draw(st.sampled_from(values)) for _ in range(count)]
        extra = (draw(st.sampled_from([0.0, 1.0])),) if name == "fill_" else ()
        made_call = made(name, *args, *extra, out=f"v{i}_")
        calls.append(made_call)
        values.append(made_call.flat_outs[0])
    returned = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    return Trace((X, Y), tuple(calls), tuple(returned), language=EMPTY_LANGUAGE)


def run(trace):
    """The observable result: values, inputs, identity of objects, and shared memory."""
    claims = RuleTable("claim")
    claims.set("num.*", Claim(None))
    done = claim(trace, [Executor("python", claims, fallback=True)], TAGS)
    scope = {c.symbol: WORDS[c.symbol.name] for c in trace.calls}
    objects = [x := Vec([1.0, 2.0]), y := Vec([3.0, 5.0])]
    objects += generate(done.trace, scope).function(x, y)
    return (
        [v.data for v in objects],
        [[a is b for a in objects] for b in objects],
        [[a.data is b.data for a in objects] for b in objects],
    )


@settings(max_examples=COUNT, deadline=None)
@given(programs())
def test_no_program_can_tell(trace):
    verify(trace, level=2, tags=TAGS, expand=EXPANSIONS)
    found = cse(trace, TAGS)
    verify(found, level=2, tags=TAGS, expand=EXPANSIONS)
    assert run(found) == run(trace)
