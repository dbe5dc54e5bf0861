"""Writes of results of another data type than that of what is written.

PyTorch's functionalization computes the result and converts it. Kernels refuse some of these
writes, which fake tensors do not always tell, and compute others in the data type of ``out=``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tj_torch.ops.expansion.recorder import Recorder, Ref

__all__ = ["refused_writes"]

_BY_A_WRITE = {"dtype", "layout"}
"""What functionalization names where it converts: no device, other than users mostly do."""


def refused_writes(recorder: Recorder, kwargs: Mapping[str, Any]) -> str | None:
    """Why what was recorded of a call with ``kwargs`` may not be what kernels do, or None."""
    for call in recorder.calls:
        operator = str(call.facts.symbol)
        if operator == "aten._to_copy.default" and call.kwargs.keys() == _BY_A_WRITE:
            result, written = recorder.values[call.args[0].index].dtype, call.kwargs["dtype"]
            if not torch.can_cast(result, written):
                return f"a result of {result} is written to a tensor of {written}"
        elif operator == "aten.copy.default" and isinstance(call.args[1], Ref):  # its own
            written, result = (recorder.values[ref.index].dtype for ref in call.args[:2])
        else:
            continue
        if "out" in kwargs and result != written:
            return "its out= has another data type than its result"
    return None
