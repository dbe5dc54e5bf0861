"""Products of matrices, where the options ask for them: nvFuser calls PyTorch's for each."""

from __future__ import annotations

import functools
from typing import Any

from tj_nvfuser.definition import Value, dtype_of
from tj_nvfuser.operations.call import Call, Operation, Operations
from tj_nvfuser.operations.pointwise import WHOLE
from tj_nvfuser.refused import refuse

__all__ = ["OPERATIONS"]


def given(call: Call, *values: Value) -> list[Value]:
    """The arguments of a product, in the data type of its result, which is theirs."""
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


product = functools.partial(Operation, joins=False, option="matmul")


OPERATIONS: Operations = {
    "aten.mm.default": product(matmul),
    "aten.bmm.default": product(matmul),
    "aten.addmm.default": product(addmm),
    "aten.linear.default": product(linear),
}
"""Products, by the names of their symbols."""
