"""Devices of fake results equal those of kernels."""

from __future__ import annotations

import pytest
import torch
from tj_torch.ops.fakes.modes import corrected_fake_kernels, fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten


@pytest.mark.parametrize("own", [True, False], ids=["own mode", "another mode"])
def test_the_random_state_of_attention_is_on_the_host(own: bool) -> None:
    """As its kernel for CUDA makes it, and its backward takes it from there."""
    with corrected_fake_kernels(), fake_mode() if own else FakeTensorMode():
        q, k, v = (torch.empty(2, 4, 16, 8, device="cuda:0") for _ in range(3))
        out, log_sum, seed, offset = aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.1
        )
        assert {out.device, log_sum.device} == {torch.device("cuda:0")}
        assert {seed.device, offset.device} == {torch.device("cpu")}
        gradients = aten._scaled_dot_product_efficient_attention_backward(
            out, q, k, v, None, out, log_sum, seed, offset, 0.1, [True, True, True, False]
        )
        assert {g.device for g in gradients[:3]} == {torch.device("cuda:0")}
