"""Known differences of gradients from eager's, by entry of PyTorch's databases, with reasons.

Tests compare in both directions, as with `tj_conformance.databases.known`, which lists the
differences of the forward.
"""

from __future__ import annotations

from tj_conformance.databases import known as forward
from tj_conformance.databases.known import Known, table
from tj_conformance.oracle.result import Kind

__all__ = ["MODULES", "OPERATIONS", "table"]

_FIRST = ("first float32", "first float64", "first complex64", "first complex128")
_REAL = ("first float32", "first float64")

_BREAKS = tuple(k for k in forward.OPERATIONS if k.kind is Kind.BREAK and not k.cases)

_DIVIDES = "with data at hand, PyTorch divides the product by each factor if none of these is zero"
_MULTIPLIES = (
    "on fake tensors PyTorch multiplies by the mask where it fills zeros else: these have a "
    "sign then"
)
_ENDS = ("max.reduction_no_dim", "median", "min.reduction_no_dim", "nanmedian")

OPERATIONS = (
    *_BREAKS,
    forward.LAPACK,
    Known(Kind.ROUNDING, _DIVIDES, ("prod",), _FIRST),
    Known(Kind.ROUNDING, _DIVIDES, ("prod",), ("first float16", "first bfloat16"), sometimes=True),
    Known(Kind.ROUNDING, _DIVIDES, ("masked.prod",), sometimes=True),
    Known(
        Kind.ROUNDING,
        "where() lays its result out in another way on fake tensors, and the sum over it is "
        "rounded accordingly",
        ("masked_fill",),
        _FIRST,
    ),
    Known(Kind.ROUNDING, _MULTIPLIES, _ENDS, _REAL),
    Known(Kind.ROUNDING, _MULTIPLIES, _ENDS, ("first float16", "first bfloat16"), sometimes=True),
    Known(
        Kind.ROUNDING,
        "the gradients of one input come as one sum, so second derivatives of its uses are added "
        "in another order",
        ("nn.functional.multi_head_attention_forward", "pca_lowrank", "svd_lowrank"),
        ("second float32",),
        sometimes=True,
    ),
    Known(
        Kind.RESULT,
        "the strides of a gradient are those that PyTorch's fake kernel says",
        ("ormqr",),
        _FIRST,
    ),
    Known(
        Kind.RESULT,
        "gradients of one element or none have the strides of another formula than with data",
        ("prod",),
        (*_FIRST, "first float16", "first bfloat16"),
        sometimes=True,
    ),
    Known(
        Kind.RESULT,
        f"{_DIVIDES}; the quotient may overflow where the product of the other factors does not",
        ("masked.prod", "prod"),
        ("first float16",),
        sometimes=True,
    ),
    Known(
        Kind.DECLINED,
        "what is returned is a view of an internal value of a call that cannot be decomposed",
        (
            "istft",
            "linalg.tensorinv",
            "linalg.tensorsolve",
            "nn.functional.instance_norm",
            "unravel_index",
        ),
        sometimes=True,  # in some data types
    ),
    Known(
        Kind.DECLINED,
        "an offset counts from the beginning of memory, and where in it an argument lies only the "
        "caller knows",
        ("as_strided", "as_strided.partial_views", "as_strided_copy", "as_strided_scatter"),
        sometimes=True,  # without an offset they have traces
    ),
    Known(
        Kind.DECLINED,
        "what the operation views depends on a tensor's data",
        ("narrow", "nonzero", "tensor_split"),
        sometimes=True,
    ),
    Known(Kind.BREAK, "Dynamo has no symbols for complex numbers", ("item",), ("first complex64",)),
    Known(
        Kind.DECLINED,
        "the number of classes, if it is not said, depends on a tensor's data",
        ("nn.functional.one_hot",),
        sometimes=True,
    ),
)
"""op_db; cases are the names of `tj_conformance.gradients.tally`: ``"first float32"``."""

MODULES = forward.MODULES
"""module_db in training."""
