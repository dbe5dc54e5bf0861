"""Masks that DTensor placements keep between calls: runs on fake tensors do not change them."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

if not distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

from tj_torch.torch_private.ops import same_masks
from torch.distributed.tensor._ops._mask_buffer import MaskBuffer


def test_a_mask_that_is_made_is_taken_back() -> None:
    buffer = MaskBuffer()
    with same_masks() as changed:
        assert not changed()
        buffer.materialize_mask(torch.tensor([True]))
        assert changed()
    assert buffer.data is None
    assert buffer.refcount == 0


def test_a_mask_that_is_used_up_is_put_back() -> None:
    buffer, mask = MaskBuffer(), torch.tensor([True])
    buffer.materialize_mask(mask)
    with same_masks() as changed:
        buffer.release_mask()
        assert changed()
    assert buffer.data is mask
    assert buffer.refcount == 1


def test_a_mask_between_two_operators_of_one_call_is_no_change() -> None:
    buffer = MaskBuffer()
    with same_masks() as changed:
        buffer.materialize_mask(torch.tensor([True]))
        buffer.release_mask()
        assert not changed()
