"""Proxies, and their metadata as text."""

from __future__ import annotations

import dataclasses

import pytest
from tj_core.errors import ParseError
from tj_core.ir.proxy import (
    Device,
    DType,
    NumberProxy,
    OpaqueProxy,
    Proxy,
    SubclassInfo,
    SymDim,
    TensorProxy,
    contiguous_strides,
    is_contiguous,
)
from tj_core.ir.tags import TagSet
from tj_core.text.metadata import meta_text, parse_meta

F32 = DType("float32", 32, "float")
S0 = SymDim("s0", 4)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (F32, "f32"),
        (DType("bfloat16", 16, "float"), "bf16"),
        (DType("float8_e4m3fn", 8, "float"), "f8_e4m3fn"),
        (DType("complex64", 64, "complex"), "c64"),
        (DType("uint8", 8, "uint"), "u8"),
        (DType("int64", 64, "int"), "i64"),
        (DType("bool", 8, "bool"), "bool"),
        (DType("quint4x2", 8, "quantized"), "quint4x2/8/quantized"),
        (DType("float4_e2m1fn_x2", 8, "float"), "float4_e2m1fn_x2/8/float"),
        # A name that says one thing and a kind that says another print in full.
        (DType("float32", 32, "posit"), "float32/32/posit"),
        (DType("bool", 1, "bool"), "bool/1/bool"),
    ],
)
def test_dtype_text(dtype, text):
    assert str(dtype) == text
    assert DType.parse(text) == dtype


@pytest.mark.parametrize("text", ["float", "x32", "", "f", "q8/eight/q"])
def test_not_a_dtype(text):
    with pytest.raises(ParseError, match="is not a data type"):
        DType.parse(text)


@pytest.mark.parametrize("device", [Device("cpu"), Device("cuda", 0), Device("mps", 12)])
def test_device_text(device):
    assert Device.parse(str(device)) == device


def test_contiguous_strides():
    assert contiguous_strides(()) == ()
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)
    assert contiguous_strides((2, 0, 4)) == (4, 4, 1)
    assert contiguous_strides((S0, 4)) == (4, 1)
    assert contiguous_strides((2, S0)) is None


S1, PRODUCT = SymDim("s1", 5), SymDim("s0*s1", 20)


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((), (), True),
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), False),
        ((2, 0, 4), (7, 5, 3), True),
        ((1, 3), (9, 1), True),
        ((3, 1), (1, 9), True),
        ((S0, 4), (4, 1), True),
        ((2, S0), (S0, 1), True),
        ((S1, S0), (S0, 1), True),
        ((S1, S0), (1, S1), False),
        ((2, S0, S1), (PRODUCT, S1, 1), True),
        ((2, S0, S1), (SymDim("s1*s0"), S1, 1), True),
        ((2, S0, S1), (SymDim("Max(1, s0)*Max(1, s1)"), SymDim("Max(1, s1)"), 1), True),
        ((2, S0, S1), (PRODUCT, 1, S0), False),
        ((S0, 3), (SymDim("s1"), 1), False),
        ((S0, SymDim("s1 + 1")), (SymDim("1 + s1"), 1), True),
    ],
)
def test_is_contiguous(shape, strides, expected):
    assert is_contiguous(TensorProxy("x", shape, strides, F32)) is expected


def test_layouts_without_strides_are_not_contiguous():
    assert not is_contiguous(TensorProxy("x", (2,), (), F32, layout="sparse_coo"))


INNER = (("_data", TensorProxy("_data", (2,), (1,), F32)), ("scale", NumberProxy("scale", "float")))


@pytest.mark.parametrize(
    ("proxy", "text"),
    [
        (TensorProxy("x", (2, 3), (3, 1), F32), "cpu f32[2, 3]"),
        (TensorProxy("x", (), (), F32), "cpu f32[]"),
        (TensorProxy("x", (2, 3), (1, 2), F32), "cpu f32[2, 3] strides=(1, 2)"),
        (TensorProxy("x", (2,), (), F32), "cpu f32[2] strides=()"),
        (TensorProxy("x", (S0, 3), (3, 1), F32), "cpu f32[s0, 3]"),
        (TensorProxy("x", (2, S0), (S0, 1), F32), "cpu f32[2, s0] strides=(s0, 1)"),
        (
            TensorProxy("x", (SymDim("Max(1, s0)"), 3), (SymDim("3*(s0//2)"), 1), F32),
            "cpu f32[Max(1, s0), 3] strides=(3*(s0//2), 1)",
        ),
        (TensorProxy("x", (2,), (1,), F32, Device("cuda", 1)), "cuda:1 f32[2]"),
        (TensorProxy("x", (2,), (1,), F32, requires_grad=True), "cpu f32[2] requires_grad"),
        (TensorProxy("x", (2,), (), F32, layout="sparse_coo"), "cpu f32[2] layout=sparse_coo"),
        (
            TensorProxy("x", (2,), (2,), F32, requires_grad=True, flags=("conj", "neg")),
            "cpu f32[2] strides=(2) requires_grad conj neg",
        ),
        (
            TensorProxy("x", (2,), (1,), F32, subclass=SubclassInfo("lib.My<T>", INNER, 'a "b"')),
            "lib.My<T>[cpu f32[2]] "
            """subclass=({'_data': 'cpu f32[2]', 'scale': 'float'}, 'a "b"')""",
        ),
        (NumberProxy("n"), "int"),
        (NumberProxy("n", "float", "s0/2 + 1"), "float s0/2 + 1"),
        (OpaqueProxy("o", "some.Type"), "object some.Type"),
    ],
)
def test_meta_text(proxy, text):
    assert meta_text(proxy) == text
    assert parse_meta(proxy.name, text) == proxy


def test_nested_subclasses_read_back():
    inner = TensorProxy("a", (2,), (1,), F32, subclass=SubclassInfo("Inner", INNER, "{x}"))
    outer = TensorProxy("x", (2,), (1,), F32, subclass=SubclassInfo("Outer", (("a", inner),)))
    assert parse_meta("x", meta_text(outer)) == outer


@pytest.mark.parametrize("text", ["cpu", "cpu f32", "f32[2]", "cpu f32[2] strides=3", "number"])
def test_not_metadata(text):
    with pytest.raises(ParseError, match="is not the metadata of a value"):
        parse_meta("x", text)


def test_only_known_proxies_have_text():
    with pytest.raises(TypeError, match="Proxy has no text"):
        meta_text(Proxy("x"))


def test_hints_and_guards_are_not_part_of_a_value():
    assert SymDim("s0", 4, print) == SymDim("s0", 5)
    assert NumberProxy("n", "int", "s0", hint=4) == NumberProxy("n", "int", "s0")


def test_same_meta_is_equality_but_for_name_and_tags():
    x = TensorProxy("x", (2,), (1,), F32, tags=TagSet(["SAVE"]))
    assert x.same_meta(TensorProxy("y", (2,), (1,), F32))
    assert not x.same_meta(TensorProxy("x", (2,), (2,), F32, tags=TagSet(["SAVE"])))
    assert not x.same_meta(NumberProxy("x"))


def test_proxies_are_immutable():
    x = TensorProxy("x", (2,), (1,), F32)
    with pytest.raises(dataclasses.FrozenInstanceError):
        x.name = "y"
    assert x.replace(name="y") == TensorProxy("y", (2,), (1,), F32)
    assert x.name == "x"
    assert x.ndim == 1


@pytest.mark.parametrize(
    ("proxy", "changes"),
    [
        (TensorProxy("x", (2,), (1,), F32, tags=TagSet(["SAVE"])), {"shape": (3,), "flags": ()}),
        (NumberProxy("n", "int", "s0", hint=4), {"name": "m"}),
        (OpaqueProxy("o", "Lock"), {}),
    ],
)  # fmt: skip
def test_replace_changes_what_is_named_and_keeps_the_rest(proxy, changes):
    made, wanted = proxy.replace(**changes), dataclasses.replace(proxy, **changes)
    for field in dataclasses.fields(proxy):  # those that are not compared, too
        assert getattr(made, field.name) == getattr(wanted, field.name)
    assert type(made) is type(proxy)
    with pytest.raises(TypeError, match="has no field 'size'"):
        proxy.replace(size=2)
