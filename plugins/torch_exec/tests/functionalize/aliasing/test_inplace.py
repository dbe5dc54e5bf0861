"""In-place and ``out=`` variants of PyTorch's own database of operations, and of foreach.

The default run takes a sample; ``TJ_FULL=1`` runs all.
"""

from __future__ import annotations

import functools

import pytest
import tj_core as tj
import torch
from tj_conformance.databases.inplace import (
    OutVariant,
    foreach_operations,
    in_place_operations,
    out_operations,
    run_foreach,
    run_in_place,
    run_out,
)
from tj_conformance.databases.op_db import full_name
from tj_conformance.sampling import FULL

pytestmark = pytest.mark.sampled(16)

FLOAT, INT = torch.float32, torch.int64

IN_PLACE = [(op, FLOAT) for op in in_place_operations(FLOAT)]
IN_PLACE += [(op, INT) for op in in_place_operations(INT) if (op, FLOAT) not in IN_PLACE]
OUT = [(op, FLOAT) for op in out_operations(FLOAT)]
OUT += [(op, INT) for op in out_operations(INT) if (op, FLOAT) not in OUT]
FOREACH = foreach_operations(FLOAT)
MIXED = [
    (FLOAT, torch.float64),
    (FLOAT, torch.float16),
    (FLOAT, INT),
    (INT, torch.bool),
    (INT, FLOAT),
    (torch.complex64, FLOAT),
    (FLOAT, torch.complex64),
]
"""Pairs of data types: of the arguments, and of the written tensor."""
IN_PLACE_MIXED = [(op, *pair) for pair in MIXED for op in in_place_operations(pair[0])]
OUT_MIXED = [(op, *pair) for pair in MIXED for op in out_operations(pair[0])]

_VIEW = "Dynamo does not capture metadata changes of arguments"
_DYNAMIC = "fake tensors with symbolic sizes do not run it"
_DATA = "a shape depends on data"
_FAKE = "the operation does not run on fake tensors"
_PACKET = "two overloads fit"

BREAKS_IN_PLACE = {
    **dict.fromkeys(("as_strided", "squeeze", "squeeze.multiple", "t"), _VIEW),
    **dict.fromkeys(("transpose", "unsqueeze"), _VIEW),
    "addbmm": _DYNAMIC,
}
BREAKS_OUT = {
    **dict.fromkeys(("randn", "take_along_dim"), _DYNAMIC),
    **dict.fromkeys(("masked_select", "nonzero", "linalg.lstsq"), _DATA),
    **dict.fromkeys(("geqrf", "histogram"), _FAKE),
    **dict.fromkeys(("_batch_norm_with_update", "_native_batch_norm_legit"), _PACKET),
}
"""Operations at which the graph breaks, as torch.compile's does, with the reasons."""

ROUNDED_OUT = {(name, torch.complex64, FLOAT) for name in ("norm.nuc", "linalg.cond")}
"""Operations and data types for which the functional form differs in the last bits."""


def named(value: object) -> str:
    return full_name(value) if hasattr(value, "variant_test_name") else str(value)


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize(("op", "dtype"), IN_PLACE if FULL else IN_PLACE[::18], ids=named)
def test_in_place(op: object, dtype: torch.dtype, grad: bool) -> None:
    result = run_in_place(op, dtype, grad=grad)
    assert result.ok, "\n".join(map(str, result.problems))
    assert not result.fallbacks or result.name in BREAKS_IN_PLACE, result.fallbacks


@functools.cache
def session() -> tj.Session:
    return tj.Session(["torch"], overrides={"torch": {"functional": "always"}})


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize(("op", "dtype"), IN_PLACE if FULL else IN_PLACE[4::18], ids=named)
def test_in_place_in_functional_form(op: object, dtype: torch.dtype, grad: bool) -> None:
    jit = functools.partial(tj.jit, session=session())
    result = run_in_place(op, dtype, grad=grad, jit=jit, lenient=True)
    assert result.ok, "\n".join(map(str, result.problems))


@pytest.mark.parametrize("variant", list(OutVariant), ids=lambda v: v.value)
@pytest.mark.parametrize(("op", "dtype"), OUT if FULL else OUT[::40], ids=named)
def test_out(op: object, dtype: torch.dtype, variant: OutVariant) -> None:
    result = run_out(op, dtype, variant=variant)
    assert result.ok, "\n".join(map(str, result.problems))
    if variant is OutVariant.FITS:  # Dynamo captures no empty one, and no two that are strided
        assert not result.fallbacks or result.name in BREAKS_OUT, result.fallbacks


@pytest.mark.parametrize(
    ("op", "dtype", "written"), IN_PLACE_MIXED if FULL else IN_PLACE_MIXED[::50], ids=named
)
def test_in_place_with_another_data_type(
    op: object, dtype: torch.dtype, written: torch.dtype
) -> None:
    jit = functools.partial(tj.jit, session=session())
    result = run_in_place(op, dtype, written=written, count=2, jit=jit, lenient=True)
    assert result.ok, "\n".join(map(str, result.problems))


@pytest.mark.parametrize(
    ("op", "dtype", "written"), OUT_MIXED if FULL else OUT_MIXED[::80], ids=named
)
def test_out_of_another_data_type(op: object, dtype: torch.dtype, written: torch.dtype) -> None:
    if (full_name(op), dtype, written) in ROUNDED_OUT:
        pytest.skip("the singular values are computed with the vectors, and rounded otherwise")
    jit = functools.partial(tj.jit, session=session())
    result = run_out(op, dtype, variant=OutVariant.FITS, written=written, jit=jit)
    assert result.ok, "\n".join(map(str, result.problems))


@pytest.mark.parametrize("op", FOREACH if FULL else FOREACH[::8], ids=lambda op: op.name)
def test_foreach(op: object) -> None:
    result = run_foreach(op, FLOAT)
    assert result.samples > 0
    assert result.ok, "\n".join(map(str, result.problems))
    assert not result.fallbacks, result.fallbacks
