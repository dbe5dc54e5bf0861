"""Expansion bound to calls; inlining of bodies."""

from __future__ import annotations

import pytest
from tj_core.contract.expansion import Expanded, bind_outputs
from tj_core.edit.inlining import can_inline, inline
from tj_core.errors import TraceError
from tj_core.ir.effects import Effects
from tj_core.ir.names import Namer
from tj_core.ir.symbol import Context
from tj_core.ir.tags import TagRegistry
from tj_core.ir.trace import Body, BoundSymbol
from tj_core.source import Source
from tj_core.testing.numeric import call, expansions, vector

X, Y = vector("x", 2), vector("y", 2)
A0, A1, V0, V1, V2 = (vector(n, 2) for n in ("a0", "a1", "_0", "_1", "_2"))
TAGS = TagRegistry()


def inlined(made, *taken):
    return inline(made, Namer({"x", "y", "z", *taken}), TAGS)


def test_outputs_are_named_by_position_in_order():
    facts = Expanded((V0, [3, V1]), Effects(mutates=(0,)))
    made = bind_outputs(call("f", X), facts, lambda i: f"o{i}")
    assert made.outputs == (vector("o0", 2), [3, vector("o1", 2)])
    assert made.effects == Effects(mutates=(0,))


def test_rebound_arguments_keep_their_names():
    facts = Expanded(None, Effects(rebinds=((1, vector("whatever", 1)),)))
    made = bind_outputs(call("f", X, Y), facts, str)
    assert made.effects.rebinds == ((1, vector("y", 1)),)


def axpy(**more):
    made = call("axpy", X, Y, Y, source=Source("f.py", 3), **more)
    return bind_outputs(made, expansions.require(made).value(made), lambda _: "z")


def test_inlined_calls_have_real_names():
    mul, add = inlined(axpy()).calls
    assert (mul.args, mul.outputs.name) == ((X, Y), "z_0")
    assert (add.args, add.outputs.name) == ((mul.outputs, Y), "z")
    assert mul.source == add.source == Source("f.py", 3)
    assert mul.parent == add.parent == "z"


def test_inner_names_are_free_ones():
    assert inlined(axpy(), "z_0", "z_0_1").calls[0].outputs.name == "z_0_2"


def test_the_parent_stays_the_users_call():
    assert {c.parent for c in inlined(axpy(parent="w")).calls} == {"w"}


def test_contexts_overlay_the_calls():
    body = Body((A0,), (call("neg", A0, outputs=V0, context=Context.of(grad=False)),), V0)
    made = call("f", X, outputs=Y, body=body, context=Context.of(grad=True, mode=1))
    assert inlined(made).calls[0].context == Context.of(grad=False, mode=1)


def test_outputs_that_are_passed_through():
    z, w, v, u = (vector(n, 2) for n in "zwvu")
    body = Body((A0,), (call("neg", A0, outputs=V0),), (A0, [V0, V0], V0, 3.0))
    made = call("f", X, outputs=(z, [w, v], u, vector("c", 2)), body=body)
    found = inlined(made)
    assert found.calls[0].outputs == w
    assert found.values == {"z": X, "v": w, "u": w, "c": 3.0}


def test_nested_bodies_are_kept_for_later():
    added = Body((A0, A1), (call("add", A0, A1, outputs=V0),), V0)
    body = Body((A0, A1), (call("g", A1, A0, outputs=V0, body=added),), V0)
    outer = call("f", X, Y, outputs=vector("z", 2), body=body)
    (inner,) = inlined(outer).calls
    assert inner.args == (Y, X)
    assert inner.body is outer.body.calls[0].body
    assert inlined(inner).calls[0].args == (Y, X)


def test_inner_arguments_that_coincide_share_a_formal():
    """``f(x)`` = ``g(x, x)``, where ``g`` was expanded for two values and returns one of them."""
    g = call("g", V0, A0, outputs=V1, body=Body((A0, A1), (call("add", A0, A1, outputs=V0),), V0))
    same = call("h", A0, outputs=V0, body=Body((A0,), (), A0))
    made = call("f", X, outputs=Y, body=Body((A0,), (same, g), V1))
    first, second = inlined(made).calls
    assert second.args == (first.outputs, X)
    assert second.body is g.body


def test_an_argument_under_its_own_name_inside():
    fill = call("fill_", A0, 1.0, outputs=A0)
    made = call("f", X, outputs=Y, body=Body((A0,), (fill, call("neg", A0, outputs=V0)), V0))
    first, second = inlined(made).calls
    assert first.outputs == first.args[0] == second.args[0] == X


def test_calls_without_outputs_lend_their_symbols_name():
    body = Body((A0,), (call("neg", A0, outputs=V0), call("note", V0)), None)
    assert [c.label for c in inlined(call("log.it", X, body=body)).calls] == ["it_0", "num.note"]


PASSING = Body((A0,), (), A0)


@pytest.mark.parametrize(
    "made",
    [
        call("f", X, outputs=Y),
        call("f_", X, outputs=Y, body=PASSING, effects=Effects(mutates=(0,))),
        call("f_", X, outputs=Y, body=PASSING, effects=Effects(rebinds=((0, X),))),
        # The argument has a gradient, what the call makes of it does not.
        call("detach", X.replace(requires_grad=True), outputs=Y,
             body=Body((A0.replace(requires_grad=True),), (), A0.replace(requires_grad=True))),
        call("f", X, outputs=(Y, vector("z", 2, requires_grad=True)),
             body=Body((A0,), (call("neg", A0, outputs=V0),), (V0, V0))),
    ],
)  # fmt: skip
def test_bodies_that_cannot_stand_for_their_call(made):
    assert not can_inline(made)
    with pytest.raises(TraceError, match="cannot be replaced by its body"):
        inlined(made)


def test_inlining_is_linear():
    """The number of visits to each value does not depend on the number of values."""
    seen = []

    class Counting(dict):
        def __getitem__(self, key):
            seen.append(key)
            return super().__getitem__(key)

    def work(n):
        values = [vector(f"_{i}", 2) for i in range(n)]
        calls = tuple(
            call("neg", a, outputs=b) for a, b in zip([A0, *values], values, strict=False)
        )
        made = BoundSymbol(call("f").symbol, (X,), (), Y, body=Body((A0,), calls, values[-1]))
        seen.clear()
        from tj_core.edit import inlining

        scope = inlining._Scope(made, made.body, Namer({"x", "y"}), TAGS)
        scope.env = Counting(scope.env)
        for inner in calls:
            scope.call(inner)
        return len(seen)

    assert work(200) == 2 * work(100)
