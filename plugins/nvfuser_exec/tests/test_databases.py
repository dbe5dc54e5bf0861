"""PyTorch's database of operations with every call that nvFuser takes in a region.

Regions run on the reference, which has nvFuser's rules of data types. The default run takes a
sample of operations; ``TJ_FULL=1`` takes all.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tj_conformance.databases.op_db import full_name
from tj_conformance.oracle.device import device
from tj_conformance.oracle.layouts import LAYOUTS, NOT_STRIDED
from tj_conformance.sampling import FULL
from tj_conformance.sweep.exact import wrong
from tj_conformance.sweep.sample import samples
from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.sampled(4)

EVERY = 1 if FULL else 40
SAMPLES = 4 if FULL else 2
DTYPES = (
    (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32,
     torch.bool)
    if FULL
    else (torch.float32, torch.bfloat16, torch.int64)
)  # fmt: skip


SIZE_ONE = {"nn.functional.rms_norm": "the stride of a dimension of size one, which says nothing"}
OPTIONS = {"minimum": 1, "matmul": True, "scans": True, "indices": True}
"""Options that allow regions of single calls, too."""

STRIDES = re.compile(r"gradients\S* stride")
"""Gradients have the strides of their formulas, run out of place; `.grad` has eager's."""


def differences(
    op: Any, jitted: Any, dtype: torch.dtype, layout: Callable[[torch.Tensor], torch.Tensor] | None
) -> list[str]:
    """Differences from eager in the samples of ``op``, with tensors made by ``layout``."""
    torch.compiler.reset()
    found: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(op, dtype, SAMPLES):
            taken = sample.changed(layout) if layout and sample.eager is not None else sample
            if taken.eager is not None:
                found += wrong(op, jitted, taken, taken.eager)
    return found


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", op_db[7::EVERY] if EVERY > 1 else op_db, ids=full_name)
def test_operations(op: Any, dtype: torch.dtype, fusing: Any) -> None:
    if dtype not in op.supported_dtypes(device()):
        pytest.skip(f"{dtype} has no kernel on CPUs")
    jitted = fusing(lambda *args, **kwargs: op.op(*args, **kwargs), OPTIONS, dynamic=False)
    assert differences(op, jitted, dtype, None) == []


@pytest.mark.sampled(12)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", op_db[5::EVERY] if EVERY > 1 else op_db, ids=full_name)
def test_operations_of_other_strides(op: Any, layout: str, fusing: Any) -> None:
    if torch.float32 not in op.supported_dtypes(device()) or full_name(op) in NOT_STRIDED:
        pytest.skip("no strided samples in float32 on CPUs")
    jitted = fusing(lambda *args, **kwargs: op.op(*args, **kwargs), OPTIONS, dynamic=False)
    found = differences(op, jitted, torch.float32, LAYOUTS[layout])
    if full_name(op) in SIZE_ONE and all("stride" in text for text in found):
        pytest.skip(SIZE_ONE[full_name(op)])
    assert [text for text in found if not STRIDES.match(text)] == []


@pytest.mark.parametrize("op", op_db[3::EVERY] if EVERY > 1 else op_db, ids=full_name)
def test_operations_of_sizes_that_are_symbols(op: Any, fusing: Any) -> None:
    if torch.float32 not in op.supported_dtypes(device()):
        pytest.skip("float32 has no kernel on CPUs")
    jitted = fusing(lambda *args, **kwargs: op.op(*args, **kwargs), OPTIONS, dynamic=True)
    found = differences(op, jitted, torch.float32, None)
    assert [text for text in found if not STRIDES.match(text)] == []
