"""Matrix products, with option ``matmul``: nvFuser calls PyTorch's for each."""

from __future__ import annotations

import functools
from typing import Any

from tj_nvfuser.definition import Text, Value, dtype_of
from tj_nvfuser.operations.call import Call, Operation, Operations
from tj_nvfuser.operations.pointwise import FLOAT8, WHOLE
from tj_nvfuser.refusal import refuse

__all__ = ["OPERATIONS"]


def given(call: Call, *values: Value) -> list[Value]:
    """Arguments of a product, cast to the data type of its result."""
    dtype = dtype_of(call.out)
    refuse(dtype in WHOLE, "a product of what is whole")
    return [call.d.cast(v, dtype) for v in values]


def matmul(call: Call, a: Value, b: Value) -> Value:
    a, b = given(call, a, b)
    return call.d.op("matmul", (a.dtype, call.out.shape), a, b)


def addmm(call: Call, bias: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    refuse(beta != 1 or alpha != 1, "a product that is scaled")
    bias, a, b = given(call, bias, a, b)
    if bias.ndim == 1 and bias.shape == b.shape[1:]:
        meta = a.dtype, call.out.shape
        return call.d.op("linear", meta, a, call.d.permute(b, [1, 0]), bias)
    return call.pointwise("add", bias, call.d.op("matmul", (a.dtype, call.out.shape), a, b))


def linear(call: Call, x: Value, weight: Value, bias: Any = None) -> Value:
    values = given(call, x, weight, *(() if bias is None else (bias,)))
    return call.d.op("linear", (values[0].dtype, call.out.shape), *values)


def scaled_mm(
    call: Call,
    a: Value,
    b: Value,
    scale_a: Value,
    scale_b: Value,
    bias: Value | None = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Value:
    dtype = dtype_of(call.out)
    refuse(dtype not in ("Half", "BFloat16", "Float"), "a product that is rounded to float8")
    refuse(scale_result is not None, "a product that is scaled")
    refuse(use_fast_accum, "sums of less precision")
    sizes = (*scale_a.shape, *scale_b.shape)
    refuse(any(n != 1 for n in sizes), "scales of rows or blocks")
    metas = [(dtype, call.out.shape)] * 3  # the second and third are None
    how = {"bias": bias, "dtype": Text(f"DataType.{dtype}")}
    return call.d.ops("scaled_mm", metas, a, b, scale_a, scale_b, **how)[0]


product = functools.partial(Operation, joins=False, option="matmul")


OPERATIONS: Operations = {
    "aten.mm.default": product(matmul),
    "aten.bmm.default": product(matmul),
    "aten.addmm.default": product(addmm),
    "aten.linear.default": product(linear),
    "aten._scaled_mm.default": product(scaled_mm, dtypes=FLOAT8),
}
"""Products, by the names of their symbols."""
