"""Devices of results as PyTorch's kernels choose them, where its fake kernels say others."""

from __future__ import annotations

from typing import Any

import torch

from tj_torch.torch_private import ops as private
from tj_torch.torch_private.eager import efficient_attention, efficient_attention_forward

__all__ = ["on_their_devices"]

HOST = torch.device("cpu")

ON_HOST = {efficient_attention: (2, 3), efficient_attention_forward: (2, 3)}
"""Results that are on the CPU wherever the arguments are: a seed and an offset of random numbers.

Their kernel makes them on the device only while a CUDA graph is captured (Note [Seed and Offset
Device] in PyTorch's ``attention.cu``); fake kernels always.
"""


def on_their_devices(mode: Any, func: Any, result: Any) -> Any:
    """Result of ``func`` on fake tensors of ``mode``, each value on the device of the kernels."""
    places = ON_HOST.get(func)
    if places is None or result[0].device.type in ("cpu", "meta"):
        return result
    values = list(result)
    for i in places:
        meta = torch.empty((), dtype=values[i].dtype, device="meta")
        values[i] = private.fake_tensor(mode, meta, HOST)
    return tuple(values)
