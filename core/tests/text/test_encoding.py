"""Traces as data for another process, which read back equal."""

from __future__ import annotations

import math

import pytest
from tj_core.errors import ParseError
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.proxy import (
    Device,
    DType,
    NumberProxy,
    OpaqueProxy,
    SubclassInfo,
    SymDim,
    TensorProxy,
)
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Constant, Context, Symbol
from tj_core.ir.tags import TagSet
from tj_core.ir.trace import Body, BoundSymbol, Change, PassRecord, Subprogram, Trace
from tj_core.source import Source
from tj_core.testing.numeric import call, vector
from tj_core.text.encoding import NotPlainError, decoded, encoded
from tj_core.text.language import EMPTY_LANGUAGE

X, Y, Z = vector("x", 2), vector("y", 2), vector("z", 2)


def again(value, **more):
    return decoded(encoded(value, set()), EMPTY_LANGUAGE, **more)


LEAVES = [
    None,
    True,
    0,
    1,
    -(2**70),
    1.0,
    -0.0,
    math.inf,
    2 - 1j,
    'a text\nof "two" lines',
    "",
    ...,
    slice(None, 3, Y),
    slice(1),
    (),
    [],
    {},
    ((1,), [1], {"a": (True, 1.0)}),
    Stage.SPLIT,
    TagSet({"SAVE": None, "LEVEL": 2, "SHARE": 0.5, "ON": True}),
    Constant("math.pi", math.pi),
    OpaqueProxy("o", type="mesh", tags=TagSet(["SAVE"])),
    NumberProxy("n", kind="float", expr="s0 + 1", hint=2.5),
    TensorProxy("t", (2, 3), (1, 2), DType("bfloat16", 16, "float"), Device("cuda", 1)),
    TensorProxy("t", (2,), (1,), requires_grad=True, flags=("conj",)),
    TensorProxy("t", (2,), (1,), subclass=SubclassInfo("M", (("a", vector("a", 2)),), "of two")),
]


@pytest.mark.parametrize("leaf", LEAVES, ids=[str(i) for i in range(len(LEAVES))])
def test_what_is_written_is_read(leaf):
    found = again(leaf)
    assert (type(found), repr(found)) == (type(leaf), repr(leaf))
    assert again((leaf, leaf)) == (leaf, leaf)


def test_numbers_that_are_equal_stay_what_they_are():
    values = (1, 1.0, True, 1 + 0j, 0.0, -0.0, False, 0)
    assert repr(again(values)) == repr(values)
    calls = tuple(call("scale", X, value, outputs=Y) for value in (1, True, 1.0))
    assert [type(c.args[1]) for c in again(calls)] == [int, bool, float]


def whole():
    """A trace with every kind of contents."""
    body = Body((X.replace(name="a0"),), (call("neg", X, outputs=Z),), Z, ((0, Z),))
    inner = Trace((X,), (call("neg", X, outputs=Y),), Y, "inner", language=EMPTY_LANGUAGE)
    effects = Effects((0,), ((0, X),), (Alias(0, "arg", 0, True),), ("random:cpu",), (("m", 0, 1),))
    first = BoundSymbol(
        Symbol("num", "map", "functional"),
        (Subprogram(inner, (0, None), True), [X, 3.0], {"k": (X, None)}),
        (("scale", 2), ("from", Constant("math.pi", math.pi))),
        (Y, [Z]),
        effects,
        body,
        Context.of(grad=False, autocast=(("cpu", "bf16"),)),
        TagSet({"SAVE": 1}),
        Source("/a/file.py", 3, "y = map(x)", "f", "model.layers.0"),
        "x",
        "python",
    )
    changes = (Change("y", "core", "rule", "file.py:1", (("other", "it was slow"),)),)
    return Trace(
        (X,),
        (first, call("neg", Z, outputs=X.replace(name="w"))),
        (Y, [Z, 2], {"last": X}),
        "backward",
        Stage.CLAIMED,
        Context.of(grad=True),
        TagSet(["SAVE"]),
        (PassRecord("acquire", "numeric"), PassRecord("claim", "core", changes, 0.25)),
        language=EMPTY_LANGUAGE,
    )


def test_a_trace_is_read_whole():
    trace, found = whole(), again(whole())
    assert found == trace
    assert found.history == trace.history
    assert [c.source for c in found.calls] == [c.source for c in trace.calls]
    assert found.language is EMPTY_LANGUAGE


def test_equal_traces_have_one_text_and_others_another():
    assert encoded(whole()) == encoded(whole())
    assert encoded(whole().replace(name="forward")) != encoded(whole())
    first, *others = whole().calls
    moved = first.replace(source=Source("/a/file.py", 4, "y = map(x)", "f", "model.layers.0"))
    assert encoded(whole().replace(calls=(moved, *others))) != encoded(whole())


def test_history_can_be_left_out():
    later = whole().replace(history=(PassRecord("acquire", "numeric", seconds=2.5),))
    assert encoded(later) != encoded(whole())
    assert encoded(later, history=False) == encoded(whole(), history=False)
    assert decoded(encoded(later, history=False), EMPTY_LANGUAGE).history == ()


def test_what_repeats_is_written_and_made_once():
    body = Body((X.replace(name="a0"),), (call("neg", X, outputs=Z),), Z)
    equal = Body((X.replace(name="a0"),), (call("neg", X, outputs=Z),), Z)
    calls = tuple(call("neg", X, outputs=Y).replace(body=b) for b in (body, equal, body))
    assert len(encoded(calls)) < len(encoded(calls[:1])) + 20
    one, two, three = again(calls)
    assert one is two is three


def test_sizes_are_made_by_who_knows_them():
    symbols: set[str] = set()
    proxy = TensorProxy("t", (SymDim("2*s0", 8), 3), (3, 1))
    text = encoded(proxy, symbols)
    assert symbols == {"s0"}
    found = decoded(text, EMPTY_LANGUAGE, lambda name: SymDim(name, 10))
    assert found == proxy
    assert found.shape[0].hint == 10


@pytest.mark.parametrize(
    "value",
    [
        range(3),
        b"bytes",
        {1: 2},
        frozenset(),
        Constant("_function0", print, named=False),
        TensorProxy("t", subclass=SubclassInfo("M", state=object())),
        TensorProxy("t", (SymDim("s0"),), (1,)),
    ],
    ids=["range", "bytes", "keys", "set", "function", "subclass", "symbol"],
)
def test_what_only_this_process_has_is_no_text(value):
    with pytest.raises(NotPlainError):
        encoded((X, [value]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '[[["Trace", 1]], [0]]',
        '[[["q", 1]], [0]]',
        "[[], [0]]",
        '[[["k", "no_such_name"]], [0]]',
        '[[], ["n", "NOWHERE"]]',
        '[[], ["float", "one"]]',
    ],
)
def test_other_text_is_refused(text):
    with pytest.raises(ParseError):
        decoded(text, EMPTY_LANGUAGE)
