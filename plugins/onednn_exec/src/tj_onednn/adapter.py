"""oneDNN's operators, and the state in which they are measured.

What they do is tested in ``tests/test_adapter.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from tj_onednn.names import (
    CONVOLUTION,
    INT8_PRODUCT,
    INT8_WEIGHT_PRODUCT,
    LINEAR,
    PACK_CONVOLUTION,
    PACK_LINEAR,
    PACK_RECURRENT,
    RECURRENT,
    without_dispatch_modes,
)

__all__ = [
    "CONVOLUTION",
    "INT8_PRODUCT",
    "INT8_WEIGHT_PRODUCT",
    "LINEAR",
    "PACK_CONVOLUTION",
    "PACK_LINEAR",
    "PACK_RECURRENT",
    "RECURRENT",
    "apart",
    "version",
]

# The arguments of the operators:
# LINEAR: x, weight, bias or None, post operation, its numbers, its algorithm. The weight is
# transposed, all of x but its last dimension are rows.
# CONVOLUTION: x, weight, bias or None, padding, stride, dilation, groups, post operation, its
# numbers, its algorithm.
# PACK_LINEAR: weight, rows; the weight in the layout that is best for so many rows.
# INT8_PRODUCT: int8 [m, k], int8 [k, n]; the sums, int32.
# INT8_WEIGHT_PRODUCT: bfloat16 [m, k], int8 [n, k], bfloat16 [n]; the weight's rows are multiplied
# by the last.
# PACK_CONVOLUTION: weight, padding, stride, dilation, groups, sizes of the input.
# RECURRENT: x, weights of x and of the state, their biases, state, cell, reverse, batch sizes,
# mode, hidden size, layers, has biases, bidirectional, batch first, training.
# PACK_RECURRENT: both weights, hidden size, reverse, has biases, batch first, sizes of the input;
# returns both packed.


def version(x: torch.Tensor) -> int:
    """Version counter of ``x``: the number of writes to its memory.

    :raises RuntimeError: for a tensor that was made in inference mode, of which nobody counts.
    """
    return x._version


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Run operators as they are inside of the block: no modes, no gradients, no autocast."""
    plain = torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False)
    with without_dispatch_modes(), contextlib.ExitStack() as stack:
        for each in plain:
            stack.enter_context(each)
        yield
