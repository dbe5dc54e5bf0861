"""Expressions over sizes: taking apart, computing, comparing; and agreement of derived outputs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tj_core.analysis.bound_sizes import SizePlace, size_places
from tj_core.errors import ParseError
from tj_core.ir.proxy import NumberProxy, SubclassInfo, SymDim, TensorProxy, size_hints
from tj_core.ir.sizes import (
    Operation,
    evaluate_size,
    normal_size,
    parse_size,
    same_size,
    same_stride,
    size_symbols,
    symbol_and_number,
)
from tj_core.ir.symbol import Symbol
from tj_core.ir.trace import BoundSymbol
from tj_core.verify.agreement import agrees

SYMBOLS = ("s0", "s1", "u0")

LEAVES = st.one_of(st.integers(0, 5).map(str), st.sampled_from(SYMBOLS))


def _combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.integers(1, 4)).map(lambda t: f"({t[0]}//{t[1]})"),
        st.tuples(inner, st.integers(1, 4)).map(lambda t: f"Mod({t[0]}, {t[1]})"),
        two.map(lambda t: f"Max({t[0]}, {t[1]})"),
        two.map(lambda t: f"Min({t[0]}, {t[1]})"),
        inner.map(lambda t: f"-{t}"),
        inner.map(lambda t: f"({t})**2"),
    )


EXPRESSIONS = st.recursive(LEAVES, _combine, max_leaves=8)
VALUES = st.fixed_dictionaries({name: st.integers(2, 40) for name in SYMBOLS})

PYTHON = {"Max": max, "Min": min, "Mod": lambda a, b: a % b}


def python(text: str, values: dict[str, int]) -> Any:
    return eval(text, PYTHON, dict(values))


@given(EXPRESSIONS, VALUES)
def test_expressions_mean_what_python_says(text: str, values: dict[str, int]) -> None:
    assert evaluate_size(text, values.__getitem__) == python(text, values)
    assert set(size_symbols(text)) == {name for name in SYMBOLS if name in text}


@given(EXPRESSIONS, EXPRESSIONS, VALUES)
def test_expressions_that_are_the_same_are_equal(a: str, b: str, values: dict[str, int]) -> None:
    if same_size(a, b):
        assert python(a, values) == python(b, values)
    assert same_size(f"({a}) + ({b})", f"({b}) + ({a})")
    assert same_size(f"({a})*({b})", f"({b})*({a})")
    assert same_size(f"({a}) - ({b})", f"-({b}) + ({a})")
    assert same_size(f"Max({a}, {b})", f"Max({b}, {a})")


@given(EXPRESSIONS, VALUES)
def test_other_names_change_nothing_else(text: str, values: dict[str, int]) -> None:
    names = {"s0": "s1", "s1": "u7", "u0": "s0"}
    other = text
    for name in SYMBOLS:
        other = other.replace(name, f"<{name}>")
    for name, new in names.items():
        other = other.replace(f"<{name}>", new)
    assert same_size(text, other, names)
    renamed = {new: values[name] for name, new in names.items()}
    assert evaluate_size(text, values.__getitem__) == evaluate_size(other, renamed.__getitem__)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("s0/2 + s1/2", 4),
        ("(s0 >= 3) & True", True),
        ("Eq(s0, 3) & Ne(s1, 3)", True),
        ("~Eq(s0, 3)", False),
        ("2 <= s0 < 4", True),
        ("s0 > 4 or s1 > 4", True),
        ("not s0 > 4", True),
        ("FloatTrueDiv(s0, 2)", 1.5),
        ("2.5*ToFloat(s0)", 7.5),
        ("CeilToInt(s0/2)", 2),
        ("TruncToInt(s0/2)", 1),
        ("Where(s0 > s1, s0, s1)", 5),
        ("Piecewise((1, s0 > 3), (s1, True))", 5),
        ("ModularIndexing(s1, 2, 2)", 0),
        ("OpaqueUnaryFn_sqrt(s0 + 1)", 2.0),
        ("PowByNatural(s0, 2)", 9),
        ("BitwiseFn_bitwise_and(s0, s1)", 1),
        ("BitwiseFn_bitwise_or(s0, 4)", 7),
        ("BitwiseFn_bitwise_xor(s0, s1)", 6),
        ("-2", -2),
    ],
)
def test_operations(text: str, value: Any) -> None:
    assert evaluate_size(text, {"s0": 3, "s1": 5}.get) == value


@pytest.mark.parametrize("text", ["s0 +", "s0[1]", "f(x=1)", "a.b", "", "'s0'", "lambda: 1"])
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(ParseError, match="not an expression over sizes"):
        parse_size(text)


def test_unknown_functions_parse_and_do_not_compute() -> None:
    assert parse_size("Strange(s0)") == Operation("Strange", ("s0",))
    assert same_size("Strange(s0*s1)", "Strange(s1*s0)")
    with pytest.raises(ParseError, match="'Strange' of sizes is not supported"):
        evaluate_size("Strange(s0)", {"s0": 1}.get)


def test_functions_are_no_polynomials() -> None:
    assert not same_size("s0//2 + s0//2", "s0")
    assert not same_size("s0 - s1", "s1 - s0")
    assert not same_size("(s0*s1 + 1)//s0", "s1")
    assert not same_size("s0//(2*s0)", "1/2")
    assert normal_size("(s0 + 1)**2") == normal_size("s0**2 + 2*s0 + 1")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("(s0*s1*4)//(2*s0)", "2*s1"),
        ("0 <= s0", "s0 >= 0"),
        ("s0 < s1", "s1 > s0"),
        ("Mod(s0, s1)", "PythonMod(s0, s1)"),
    ],
)
def test_operations_that_are_spelled_in_two_ways(a: str, b: str) -> None:
    assert same_size(a, b)
    assert not same_size(a, b.replace("s1", "s2") if "s1" in b else b.replace("s0", "s2"))


def test_no_size_of_a_tensor_with_elements_is_nothing() -> None:
    assert same_stride("2*Max(1, s0)", "2*s0")
    assert same_stride("Max(1, s7)", "s0", {"s7": "s0"})
    assert not same_stride("Max(2, s0)", "s0")
    assert not same_size("Max(1, s0)", "s0")


# ---------------------------------------------------------------------------- agreement


def tensor(*shape: Any) -> TensorProxy:
    dims = tuple(SymDim(d) if isinstance(d, str) else d for d in shape)
    return TensorProxy("t", dims, tuple(1 for _ in dims))


def call(*args: Any, outputs: Any) -> BoundSymbol:
    return BoundSymbol(Symbol("torch", "f"), args, outputs=outputs)


@pytest.mark.parametrize(
    ("said", "derived", "agreed"),
    [
        (tensor("s0", 2), tensor("s0", 2), True),
        (tensor("s0", 2), tensor("s1", 2), True),  # a symbol that the call makes
        (tensor("u0", "u0*s0"), tensor("u9", "s0*u9"), True),
        (tensor("u0", "u1"), tensor("u9", "u9"), False),
        (tensor("u0", "u0 + 1"), tensor("u9", "u9 + 2"), False),
        (tensor(3, 2), tensor("u9", 2), True),  # the program knows the value
        (tensor(3, "u0"), tensor("u9", "u9"), False),
        (tensor(3, 2), tensor("u9", "6//u9"), True),
        (tensor(3, 3), tensor("u9", "6//u9"), False),
        (tensor("u0"), tensor(3), False),
        (tensor("u0"), tensor("u9", 1), False),
        (NumberProxy("n", "int", "u0 + 1"), NumberProxy("m", "int", "u3 + 1"), False),
        (NumberProxy("n", "int", "u0"), NumberProxy("m", "int", "u3"), True),
        (NumberProxy("n", "int", "u0"), NumberProxy("m", "float", "u3"), False),
        (NumberProxy("n", "bool", "Eq(u0, 1)"), NumberProxy("m", "bool", "Eq(u3, 1)"), True),
        (NumberProxy("n", "bool", "Eq(u0, 1)"), NumberProxy("m", "bool", "Eq(u3, 2)"), False),
        (NumberProxy("n", "bool", "Eq(u0, 1)"), NumberProxy("m", "bool", "Ne(u3, 1)"), False),
        (NumberProxy("n", "bool", "Eq(u0, 1)"), NumberProxy("m", "bool", "u3 < 1"), False),
        (NumberProxy("n", "bool", "u0 >= 0"), True, True),  # settled by a later check
        (NumberProxy("n", "int", "u0"), True, False),
        (NumberProxy("n", "bool"), True, False),
        (True, NumberProxy("n", "bool", "u0 >= 0"), False),
        ((tensor("u0"), tensor("2*u0")), (tensor("u5"), tensor("2*u5")), True),
        (tensor("u0"), (tensor("u0"),), True),
        (tensor("u0"), (tensor("u0"), 1), False),
    ],
)
def test_outputs_agree_up_to_symbols_that_the_call_makes(
    said: Any, derived: Any, agreed: bool
) -> None:
    assert agrees(call(outputs=said), derived) is agreed


def test_strides_agree_where_there_are_elements() -> None:
    x = tensor("s0").replace(name="x")
    said, derived = (
        tensor(2, "s0").replace(strides=(SymDim(stride), 1)) for stride in ("Max(1, s0)", "s0")
    )
    assert agrees(call(x, outputs=said), derived)
    assert not agrees(call(x, outputs=tensor("Max(1, s0)")), tensor("s0"))


def test_contexts_of_subclasses_are_compared_but_in_bodies() -> None:
    """The context of a tensor subclass may depend on autograd, which bodies leave out."""
    kinds = (SubclassInfo("lib.My", (("a", tensor(2)),), context) for context in ("1", "2"))
    said, derived = (tensor(2).replace(subclass=kind) for kind in kinds)
    other = tensor(2).replace(subclass=SubclassInfo("lib.Other", (("a", tensor(2)),), "1"))
    assert not agrees(call(outputs=said), derived)
    assert agrees(call(outputs=said), derived, nested=True)
    assert not agrees(call(outputs=said), other, nested=True)
    assert not agrees(call(outputs=said), tensor(2), nested=True)


def test_symbols_of_arguments_stay_what_they_are() -> None:
    x = tensor("s0").replace(name="x")
    assert not agrees(call(x, outputs=tensor("s1")), tensor("s0"))
    assert agrees(call(x, outputs=tensor("s0")), tensor("s0"))


def test_sizes_that_guards_have_made_equal_agree() -> None:
    def of(name: str, known: int | str | None) -> TensorProxy:
        return tensor(2).replace(shape=(SymDim(name, settled=lambda: known),))

    x = tensor("s0", "s1").replace(name="x")
    assert agrees(call(x, outputs=of("s1", "s0")), of("s0", None))
    assert agrees(call(x, outputs=of("s1", 3)), of("s0", 3))
    assert not agrees(call(x, outputs=of("s1", None)), of("s0", None))


def test_numbers_that_guards_have_made_equal_agree() -> None:
    def size_of(known: int | str | None, said: str, derived: str) -> bool:
        x = tensor(2).replace(name="x", shape=(SymDim("s1", settled=lambda: known),))
        made = call(x, outputs=NumberProxy("n", "int", said))
        return agrees(made, NumberProxy("m", "int", derived))

    assert size_of("s0", said="s0", derived="s1")
    assert size_of("s0", said="s1", derived="s0")
    assert size_of("s0", said="2*s0 + 1", derived="1 + 2*s1")
    assert size_of("s0", said="s1", derived="s1")
    assert not size_of("s0", said="s0 + 1", derived="s1")
    assert not size_of(None, said="s0", derived="s1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("n + 1", ("n", 1)),
        ("1 + n", ("n", 1)),
        ("n - 2", ("n", -2)),
        ("n + -2", ("n", -2)),
        ("2 - n", None),
        ("n", None),
        ("n + m", None),
        ("2*n + 1", None),
        ("n // 2", None),
    ],
)
def test_a_symbol_and_a_number(text: str, found: Any) -> None:
    assert symbol_and_number(text) == found


def test_places_of_symbols_in_sums() -> None:
    inputs = [tensor("n + 1", "m"), tensor(4, "k - 2"), tensor("n", "2*j")]
    assert size_places(inputs) == {"m": SizePlace(0, 1), "n": SizePlace(2, 0)}
    solved = size_places(inputs[:2], sums=True)
    assert {name: place.text for name, place in solved.items()} == {
        "n": "box[0].size(0) + -1",
        "m": "box[0].size(1)",
        "k": "box[1].size(1) + 2",
    }
    assert size_places(inputs, sums=True)["n"] == SizePlace(2, 0)


def test_traced_values_of_symbols_in_sums() -> None:
    dims = (SymDim("n + 1", 8), SymDim("m", 3), SymDim("2*j", 6))
    assert size_hints([tensor(2).replace(shape=dims)]) == {"n": 7, "m": 3}
