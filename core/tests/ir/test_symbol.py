"""Symbols, calls, constants, contexts, bodies under formal names."""

from __future__ import annotations

import pytest
from tj_core.edit.bodies import canonical_body, closed_body, formals, with_args, wrapped_body
from tj_core.errors import TraceError
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.symbol import PLAIN_CONTEXT, Constant, Context, Symbol
from tj_core.ir.tags import TagSet
from tj_core.ir.trace import Body, BoundSymbol
from tj_core.ir.tree import leaves, map_tree
from tj_core.testing.numeric import call, vector

X, Y, Z = vector("x", 2), vector("y", 2), vector("z", 2)


def test_a_symbol_is_its_dotted_name():
    symbol = Symbol.parse("torch.nn.functional.linear")
    assert symbol == Symbol("torch", "nn.functional.linear")
    assert str(symbol) == "torch.nn.functional.linear"


def test_an_edited_symbol_is_marked_once():
    edited = Symbol("num", "axpy").as_edited()
    assert edited == Symbol("num", "axpy.rewritten")
    assert edited.edited
    assert edited.as_edited() is edited
    assert not Symbol("num", "axpy").edited


@pytest.mark.parametrize("variant", ["functional", "inverse", "augmented", "forward", "backward"])
def test_a_variant_is_printed_after_the_name_and_read_back(variant: str) -> None:
    made = Symbol("torch", "mul").as_variant(variant)
    assert (made.name, made.variant, str(made)) == ("mul", variant, f"torch.mul.{variant}")
    read = Symbol.parse(str(made))
    assert (read, read.name, read.variant) == (made, "mul", variant)
    assert made.base == Symbol("torch", "mul") != made
    assert hash(read) == hash(made)


def test_a_variant_may_be_one_of_a_variant() -> None:
    gradient = Symbol("torch", "Tensor.mul_").as_variant("functional").as_variant("backward")
    assert str(gradient) == "torch.Tensor.mul_.functional.backward"
    assert not gradient.functional
    assert gradient.base.functional
    assert gradient.base.base == Symbol("torch", "Tensor.mul_")


def test_a_function_that_is_called_like_a_variant_is_none() -> None:
    assert not Symbol("torch", "Tensor.inverse").functional
    assert Symbol.parse("torch.inverse").variant == ""
    assert Symbol.parse("torch.Tensor.inverse") == Symbol("torch", "Tensor.inverse")
    assert Symbol.parse("torch.Tensor.inverse").path == "Tensor.inverse"


def test_constants_are_their_text_or_their_object():
    nan = float("nan")
    assert Constant('float("nan")', nan) == Constant('float("nan")', float("nan"))
    assert Constant("_f", [1], named=False) != Constant("_f", [1], named=False)
    value = [1]
    assert Constant("_f", value, named=False) == Constant("_f", value, named=False)
    assert Constant("_f", value, named=False) != Constant("_g", value, named=False)
    assert Constant("a", 1) != "a"
    assert hash(Constant("_f", value)) == hash(Constant("_f", []))


def test_contexts_overlay():
    outer = Context.of(grad=True, mode="a")
    inner = outer.with_("grad", False)
    assert inner.beyond(outer) == Context.of(grad=False)
    assert Context.of(grad=False).over(outer) == inner
    assert inner.over(outer) == inner
    assert inner.over(PLAIN_CONTEXT) is inner
    assert outer.beyond(outer) == PLAIN_CONTEXT
    assert inner.get("grad") is False
    assert inner.get("none") is None


def test_effects_that_forbid_removal():
    assert Effects(aliases=(Alias(0, "arg"),)).removable
    assert not Effects(mutates=(0,)).removable
    assert not Effects(rebinds=((0, X),)).removable
    assert not Effects(ordered=("random:cpu",)).removable


def test_flat_arguments_count_proxies_in_order():
    made = BoundSymbol(
        Symbol("num", "f"),
        (X, [1, (Y, None)], slice(Z, None, 2)),
        (("k", {"b": X, "a": Y}),),
        (Z.replace(name="o"), [vector("p", 1), 3]),
    )
    assert [p.name for p in made.flat_args] == ["x", "y", "z", "x", "y"]
    assert [p.name for p in made.flat_outs] == ["o", "p"]
    assert made.label == "o"
    assert call("f", X).label == "num.f"


def test_defined_leaves_out_arguments_under_their_own_name():
    assert call("fill_", X, 1.0, outputs=(X, Y)).defined() == (Y,)


def test_maps_that_change_nothing_return_the_same_object():
    tree = (X, [1, {"k": Y}], slice(Z, None))
    assert map_tree(lambda p: p, tree) is tree
    made = call("f", *tree, outputs=vector("o", 2))
    assert made.map_proxies(lambda p: p) is made
    assert with_args(made, lambda p: p) is made
    renamed = made.map_proxies(lambda p: p.replace(name=p.name * 2))
    assert [p.name for p in (*renamed.flat_args, *renamed.flat_outs)] == ["xx", "yy", "zz", "oo"]
    assert list(leaves(renamed.args)) == [
        *renamed.flat_args[:1],
        1,
        *renamed.flat_args[1:],
        None,
        None,
    ]


def nested(first=X, second=Y):
    """``f(first, second)`` whose body calls ``g`` on both, whose body adds both."""
    a0, a1, out = vector("a0", 2), vector("a1", 2), vector("_0", 2)
    inner = call(
        "g", a0, a1, outputs=out, body=Body((a0, a1), (call("add", a0, a1, outputs=out),), out)
    )
    effects = Effects(aliases=(Alias(0, "arg", 1),))
    return call("f", first, second, outputs=Z, body=Body((a0, a1), (inner,), out), effects=effects)


def test_arguments_that_become_one_share_a_formal():
    made = with_args(nested(), lambda p: X)
    assert made.args == (X, X)
    assert [p.name for p in made.body.inputs] == ["a0"]
    inner = made.body.calls[0]
    assert [p.name for p in inner.flat_args] == ["a0", "a0"]
    assert [p.name for p in inner.body.inputs] == ["a0"]
    assert [p.name for p in inner.body.calls[0].flat_args] == ["a0", "a0"]


def test_arguments_that_are_renamed_keep_the_body():
    made = nested()
    assert with_args(made, lambda p: p.replace(name=p.name * 2)).body is made.body


def test_an_argument_that_becomes_a_constant_moves_the_others():
    made = with_args(nested(), lambda p: 3.0 if p is X else p)
    assert made.args == (3.0, Y)
    assert made.effects.aliases == (Alias(0, "arg", 0),)
    assert [p.name for p in made.body.inputs] == ["a0"]
    inner = made.body.calls[0]
    assert inner.args == (3.0, vector("a0", 2))
    assert inner.body.calls[0].args == (3.0, vector("a0", 2))
    gone = with_args(nested(), lambda p: 3.0 if p is Y else p)
    assert gone.effects == Effects()


def test_effects_on_arguments_that_become_constants_are_gone():
    made = call("f_", X, Y, effects=Effects(mutates=(0, 1), rebinds=((1, vector("y", 1)),)))
    moved = with_args(made, lambda p: 3.0 if p is X else p)
    assert moved.effects == Effects(mutates=(0,), rebinds=((0, vector("y", 1)),))


def test_formals_are_one_per_distinct_argument():
    tagged = X.replace(tags=TagSet(["SAVE"]))
    assert formals(call("f", tagged, Y, tagged, Z)) == {
        "x": vector("a0", 2),
        "y": vector("a1", 2),
        "z": vector("a3", 2),
    }


def test_a_wrapped_body_is_the_call_under_formal_names():
    shrunk = vector("x", 1)
    made = call(
        "f_", X, Y, X, outputs=(X, Z), context=Context.of(grad=False), parent="p",
        effects=Effects(mutates=(0,), rebinds=((0, shrunk),)),
    )  # fmt: skip
    body = wrapped_body(made)
    a0, a1, out = vector("a0", 2), vector("a1", 2), vector("_0", 2)
    assert body.inputs == (a0, a1)
    assert body.outputs == (a0, out)
    (inner,) = body.calls
    assert inner.args == (a0, a1, a0)
    assert inner.context == PLAIN_CONTEXT  # relative to the call around it
    assert inner.parent is None
    assert inner.effects.rebinds == ((0, vector("a0", 1)),)


def test_canonical_bodies_count_their_values():
    a0, p, q = vector("a0", 2), vector("p", 2), vector("q", 2)
    body = Body((a0,), (call("neg", a0, outputs=p), call("neg", p, outputs=q)), q, ((0, p),))
    found = canonical_body(body)
    assert [c.outputs.name for c in found.calls] == ["_0", "_1"]
    assert found.calls[1].args[0].name == "_0"
    assert (found.outputs.name, found.updates[0][1].name) == ("_1", "_0")
    assert canonical_body(found) is found


def test_a_body_cannot_use_what_nothing_defines():
    with pytest.raises(TraceError, match="a body uses 'x', which nothing in it defines"):
        canonical_body(Body((), (call("neg", X, outputs=Y),), Y))


def test_walk_goes_through_bodies_depth_first():
    assert [c.symbol.name for c in nested().walk()] == ["f", "g", "add"]


@pytest.mark.parametrize("names", [("_0", "_0"), ("a1", "_0"), ("_0", "a1")])
def test_a_body_defines_no_name_twice(names: tuple[str, str]) -> None:
    a0, a1 = vector("a0", 2), vector("a1", 2)
    calls = tuple(call("neg", a0, outputs=vector(name, 2)) for name in names)
    with pytest.raises(TraceError, match=r"a body defines '(_0|a1)' twice"):
        Body((a0, a1), calls, calls[-1].outputs)


def test_no_body_has_two_inputs_of_one_name() -> None:
    a0 = vector("a0", 2)
    with pytest.raises(TraceError, match="a body defines 'a0' twice"):
        Body((a0, a0), (), a0)


def test_names_of_a_program_meet_no_formal_names() -> None:
    """Inputs and values have each other's formal names, and are exchanged at once."""
    inputs = (vector("_0", 2), vector("a0", 2))
    first = call("add", *inputs, outputs=vector("a1", 2))
    last = call("mul", first.outputs, inputs[0], outputs=vector("_7", 2))
    body = closed_body(inputs, (first, last), (last.outputs,))
    assert [p.name for p in body.inputs] == ["a0", "a1"]
    assert [[p.name for p in c.flat_args] for c in body.calls] == [["a0", "a1"], ["_0", "a0"]]
    assert [c.outputs.name for c in body.calls] == ["_0", "_1"]
    assert body.outputs[0].name == "_1"


def test_a_body_reads_nothing_that_it_does_not_define() -> None:
    with pytest.raises(TraceError, match="uses 'y', which nothing in it defines"):
        closed_body((X,), (call("neg", Y, outputs=Z),), Z)
