"""PyTorch's database of operations with every call that nvFuser takes in a region.

Regions run on the reference, which has nvFuser's rules of data types. The default run takes a
sample of operations; ``TJ_FULL=1`` takes all.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tj_conformance.databases.op_db import full_name
from tj_conformance.sampling import FULL
from tj_conformance.sweep.exact import wrong
from tj_conformance.sweep.sample import samples
from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.sampled(2)

EVERY = 1 if FULL else 40
SAMPLES = 4 if FULL else 2
DTYPES = (
    (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32,
     torch.bool)
    if FULL
    else (torch.float32, torch.bfloat16, torch.int64)
)  # fmt: skip


OPTIONS = {"minimum": 1, "matmul": True, "scans": True}
"""Regions of single calls, too."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", op_db[7::EVERY] if EVERY > 1 else op_db, ids=full_name)
def test_operations(op: Any, dtype: torch.dtype, fusing: Any) -> None:
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip(f"{dtype} has no kernel on CPUs")
    torch.compiler.reset()
    jitted = fusing(lambda *args, **kwargs: op.op(*args, **kwargs), OPTIONS, dynamic=False)
    found: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(op, dtype, SAMPLES):
            if sample.eager is not None:
                found += wrong(op, jitted, sample, sample.eager)
    assert found == []
