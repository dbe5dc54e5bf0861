"""Programs that nvFuser 0.2.36 printed compute what their definitions do."""

# ruff: noqa: E501 -- programs stand here as nvFuser has printed them

from __future__ import annotations

import pytest
import torch
from tj_nvfuser.testing.printouts import printed, rounded
from tj_nvfuser.testing.reference import Reference

HEAD = "def nvfuser_fusion(fd) -> None:\n"

VARIANCE = """
    T0 = fd.define_tensor([5, 4], [True, True], DataType.Float, False, [1, 0])
    t1_0, t1_1 = fd.ops.var_mean(T0, dims=[0], correction=1, keepdim=False)
    fd.add_output(t1_0)
    fd.add_output(t1_1)
"""
VARIANCE_PRINTED = """
    tv0 = fd.define_tensor(shape=[5, 4], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    tv1, tv2, tv3 = fd.ops.welford(tv0, dims=[0])
    c6 = fd.ops.cast(5, dtype=DataType.Double)
    c8 = fd.ops.mul(1.00000, c6)
    c12 = fd.ops.cast(1, dtype=DataType.Double)
    c14 = fd.ops.sub(c8, c12)
    c16 = fd.ops.cast(0, dtype=DataType.Double)
    c18 = fd.ops.ge(c14, c16)
    c20 = fd.ops.cast(0, dtype=DataType.Double)
    c22 = fd.ops.where(c18, c14, c20)
    c28 = fd.ops.reciprocal(c22)
    tv4 = fd.ops.mul(tv2, c28)
    fd.add_output(tv4)
    fd.add_output(tv1)
"""

INDEXED = """
    T0 = fd.define_tensor([5, 4], [True, True], DataType.Float, False, [1, 0])
    T1 = fd.define_tensor([2], [True], DataType.Int, False, [0])
    t2 = fd.ops.lt(T1, 0)
    t3 = fd.ops.add(T1, 4)
    t4 = fd.ops.where(t2, t3, T1)
    t5 = fd.ops.index_select(T0, t4, dim=1)
    t6 = fd.ops.mul(t5, 2.0)
    t7 = fd.ops.sum(t6, dims=[0], keepdim=False)
    t8 = fd.ops.add(t7, 1.0)
    fd.add_output(t8)
"""
INDEXED_PRINTED = """
    tv0 = fd.define_tensor(shape=[5, 4], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    tv1 = fd.define_tensor(shape=[2], contiguity=[True], dtype=DataType.Int, is_cpu=False)
    tv2 = fd.ops.lt(tv1, 0)
    tv3 = fd.ops.add(tv1, 4)
    tv4 = fd.ops.where(tv2, tv3, tv1)
    tv5 = fd.ops.broadcast(tv4, is_broadcast_dim=[True, False])
    tv6 = fd.ops.index_select(tv0, tv5, dim=1)
    tv7 = fd.ops.mul(tv6, 2.00000)
    tv8 = fd.ops.sum(tv7, dims=[0], dtype=DataType.Float)
    tv9 = fd.ops.add(tv8, 1.00000)
    fd.add_output(tv9)
"""

JOINED = """
    T0 = fd.define_tensor([4, 8], [True, True], DataType.BFloat16, False, [1, 0])
    t2 = fd.ops.cast(T0, dtype=DataType.Float)
    t3 = fd.ops.mul(t2, 1.001)
    t4 = fd.ops.cast(t3, dtype=DataType.BFloat16)
    t8 = fd.ops.cat([t4, T0], dim=0)
    t9 = fd.ops.cast(t8, dtype=DataType.Float)
    t10, t11 = fd.ops.topk(t9, 2, dim=1, largest=True, sorted=True)
    fd.add_output(t8)
    fd.add_output(t10)
    fd.add_output(t11)
"""
JOINED_PRINTED = """
    tv0 = fd.define_tensor(shape=[4, 8], contiguity=[True, True], dtype=DataType.BFloat16, is_cpu=False)
    tv2 = fd.ops.cast(tv0, dtype=DataType.Float)
    tv3 = fd.ops.mul(tv2, 1.00100)
    tv4 = fd.ops.cast(tv3, dtype=DataType.BFloat16)
    c45 = fd.define_scalar(0.00000, dtype=DataType.BFloat16)
    tv8 = fd.ops.pad(tv4, pad_widths=[0, 0, 0, 4], value=c45)
    c43 = fd.ops.add(0, 4)
    c54 = fd.define_scalar(0.00000, dtype=DataType.BFloat16)
    tv9 = fd.ops.pad(tv0, pad_widths=[0, 0, c43, 0], value=c54)
    tv10 = fd.ops.cat([tv8, tv9], dim=0, manual_padding=True)
    tv11 = fd.ops.cast(tv10, dtype=DataType.Float)
    tv55, tv56 = fd.ops.topk(tv11, 2, dim=1, sorted=True)
    fd.add_output(tv10)
    fd.add_output(tv55)
    fd.add_output(tv56)
"""

SIZED = """
    T0 = fd.define_tensor([-1, 8], [True, True], DataType.Float, False, [1, 0])
    T1 = fd.define_tensor([8], [True], DataType.Float, False, [0])
    n2 = fd.ops.size(T0, dim=0)
    t3 = fd.ops.broadcast_in_dim(T1, shape=[n2, 8], broadcast_dims=[1])
    t4 = fd.ops.div(t3, 2.7725887222397811)
    t5 = fd.ops.mul(T0, t4)
    t6 = fd.ops.slice(t5, start_indices=[0, 2], end_indices=[n2, 6])
    t7 = fd.ops.stride_order(t6, stride_order=[1, 0])
    fd.add_output(t7)
"""
SIZED_PRINTED = """
    tv0 = fd.define_tensor(shape=[-1, 8], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    tv1 = fd.define_tensor(shape=[8], contiguity=[True], dtype=DataType.Float, is_cpu=False)
    tv7 = fd.ops.broadcast(tv1, is_broadcast_dim=[True, False])
    c0 = fd.ops.size(tv0, dim=0)
    c28 = fd.ops.cast(c0, dtype=DataType.Index)
    tv8 = fd.ops.expand(tv7, shape=[c28, 8])
    tv9 = fd.ops.div(tv8, 2.77259)
    tv10 = fd.ops.mul(tv0, tv9)
    tv11 = fd.ops.slice(tv10, start_indices=[0, 2], end_indices=[c0, 6], strides=[1, 1], manual_normalization=True)
    tv12 = fd.ops.stride_order(tv11, stride_order=[])
    fd.add_output(tv12)
"""

PROGRAMS = {
    "variance": (VARIANCE, VARIANCE_PRINTED, [(torch.float32, (5, 4))]),
    "indexed": (INDEXED, INDEXED_PRINTED, [(torch.float32, (5, 4)), (torch.int64, (2,))]),
    "joined": (JOINED, JOINED_PRINTED, [(torch.bfloat16, (4, 8))]),
    "sized": (SIZED, SIZED_PRINTED, [(torch.float32, (3, 8)), (torch.float32, (8,))]),
}


def inputs_of(name: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(sizes, dtype=dtype) if dtype.is_floating_point else torch.tensor([1, -1])
        for dtype, sizes in PROGRAMS[name][2]
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_printed_is_what_was_defined(name: str) -> None:
    defined, text, _ = PROGRAMS[name]
    inputs = inputs_of(name)
    expected = Reference().build(rounded(HEAD + defined))(inputs)
    torch.testing.assert_close(printed(HEAD + text)(inputs), list(expected))


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("variance", "fd.add_output(tv4)", "fd.add_output(tv2)"),
        ("indexed", "dims=[0]", "dims=[1]"),
        ("joined", "[0, 0, 0, 4]", "[0, 0, 4, 0]"),
        ("sized", "2.77259", "2.7"),
    ],
)
def test_another_program_is_found(name: str, right: str, wrong: str) -> None:
    defined, text, _ = PROGRAMS[name]
    inputs = inputs_of(name)
    expected = Reference().build(rounded(HEAD + defined))(inputs)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            printed(HEAD + text.replace(right, wrong))(inputs), list(expected), rtol=1e-3, atol=1e-4
        )


def test_constants_are_rounded_as_they_are_printed() -> None:
    text = HEAD + "    fd.ops.log(2.7725887222397811, 3, 1e-05, float('-inf'))\n"
    assert "log(2.77259, 3, 1e-05, float('-inf'))" in rounded(text)


def test_what_is_not_known_is_no_silence() -> None:
    tensor = "tv0 = fd.define_tensor([2], [True], DataType.Float, False)"
    with pytest.raises(AttributeError, match="has no something"):
        printed(f"{HEAD}    {tensor}\n    fd.ops.something(tv0)\n")([torch.ones(2)])
