"""Detect in-place writes whose result has another data type than the written tensor.

PyTorch's functionalization computes the result and converts it. Kernels refuse some such writes,
which fake tensors do not always report, and compute others in the data type of ``out=``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tj_torch.ops.expansion.recorder import Recorder, Ref

__all__ = ["refused_writes"]

_BY_A_WRITE = {"dtype", "layout"}
"""Keywords of ``_to_copy`` when functionalization converts; calls of users mostly have others."""


def refused_writes(recorder: Recorder, kwargs: Mapping[str, Any]) -> str | None:
    """Reason why kernels may refuse a recorded call, or compute another result; else None."""
    for call in recorder.calls:
        operator = str(call.facts.symbol)
        if operator == "aten._to_copy.default" and call.kwargs.keys() == _BY_A_WRITE:
            result, written = recorder.values[call.args[0].index].dtype, call.kwargs["dtype"]
            # "result type Float can't be cast to the desired output type Long": eager raises.
            if not torch.can_cast(result, written):
                return f"a result of {result} is written to a tensor of {written}"
        elif operator == "aten.copy.default" and isinstance(call.args[1], Ref):  # its own
            written, result = (recorder.values[ref.index].dtype for ref in call.args[:2])
        else:
            continue
        if "out" in kwargs and result != written:
            return "its out= has another data type than its result"
    return None
