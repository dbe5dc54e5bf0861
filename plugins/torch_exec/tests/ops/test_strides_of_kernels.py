"""The strides that fake kernels say, with tj's corrections, are those of PyTorch's kernels.

Each operator that a call of PyTorch's database reaches, on transposed tensors and on tensors with
gaps. Programs are traced on fake tensors, and look at strides: `x.is_contiguous()`, `x.view(-1)`.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tj_conformance.databases.op_db import full_name
from tj_conformance.oracle.layouts import LAYOUTS, NOT_STRIDED
from tj_conformance.sampling import FULL
from tj_conformance.sweep.sample import samples
from tj_torch.ops.fake_modes import fake_mode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

EVERY = 1 if FULL else 8


class Comparing(TorchDispatchMode):
    """Runs each operator on fake tensors, too, and keeps where strides differ."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        try:
            mode = fake_mode()
            given = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs or {}))
            with mode:
                said = func(*given[0], **given[1])
        except Exception:  # sizes that depend on data, quantized tensors: no fake result
            said = None
        result = func(*args, **(kwargs or {}))
        for fake, real in zip(*map(pytree.tree_leaves, (said, result)), strict=False):
            if isinstance(fake, torch.Tensor) and strides(fake) != strides(real):
                self.found.add(f"{func}: {strides(fake)}, not {strides(real)}, of {shapes(args)}")
        return result


def strides(x: Any) -> list[int] | None:
    """Those that say where elements are; None where there is nothing to say."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.numel() < 2:
        return None
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def shapes(args: Any) -> list[Any]:
    tensors = (x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor))
    return [(tuple(x.shape), x.stride()) for x in tensors if x.layout is torch.strided]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", op_db[1::EVERY] if EVERY > 1 else op_db, ids=full_name)
def test_fake_kernels_say_the_strides_of_real_ones(op: Any, layout: str) -> None:
    if torch.float32 not in op.supported_dtypes("cpu"):
        pytest.skip("float32 has no kernel on CPUs")
    if full_name(op) in NOT_STRIDED:
        pytest.skip("its samples are sparse")
    comparing = Comparing()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(op, torch.float32, 6):
            if sample.eager is not None:
                with comparing:
                    sample.changed(LAYOUTS[layout])
    assert comparing.found == set()
