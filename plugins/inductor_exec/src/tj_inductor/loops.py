"""Operators that Inductor writes loops for, where it calls no kernel of PyTorch."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["is_in_loops"]

TOGETHER = frozenset({
    "sum", "mean", "amax", "amin", "var", "var_mean", "prod", "any", "all", "argmax", "argmin",
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "_fused_rms_norm",
    "_fused_rms_norm_backward", "_softmax", "_softmax_backward_data", "_log_softmax",
    "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward",
    "_to_copy", "clone", "cat", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like",
    "arange", "scalar_tensor", "constant_pad_nd", "slice_backward", "select_backward", "gather",
    "embedding", "_embedding_bag_backward", "index", "index_select", "stack", "repeat", "flip",
    "roll",
})  # fmt: skip
"""Operators, beside pointwise ones and views, that share a kernel with their neighbours."""


def is_in_loops(operator: Any) -> bool:
    """Check that Inductor writes loops for ``operator``, which is no view: it calls no kernel."""
    name = operator.name().partition("::")[2].partition(".")[0]
    return name in TOGETHER or torch.Tag.pointwise in operator.tags
