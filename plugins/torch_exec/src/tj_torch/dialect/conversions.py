"""Writes of results of another data type than that of what is written.

PyTorch's functionalization computes the result and converts it. Kernels refuse some of these
writes, which fake tensors do not always tell, and compute others in the data type of ``out=``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tj_torch.dialect.recorder import Recorded, Recorder

__all__ = ["refused_writes"]


def refused_writes(recorder: Recorder, kwargs: Mapping[str, Any]) -> str | None:
    """Why what was recorded of a call with ``kwargs`` may not be what kernels do, or None."""
    for call in recorder.calls:
        for result, written in _converted(recorder, call):
            if not torch.can_cast(result, written):
                return f"a result of {result} is written to a tensor of {written}"
    if "out" in kwargs and any(
        a != b for call in recorder.calls for a, b in _written(recorder, call)
    ):
        return "its out= has another data type than its result"
    return None


Pairs = Iterator[tuple[torch.dtype, torch.dtype]]


def _converted(recorder: Recorder, call: Recorded) -> Pairs:
    """The data types of a result and of what it is written to, where functionalization converts.

    It names the layout and no device, as users hardly ever do.
    """
    if str(call.facts.symbol) == "aten._to_copy.default" and call.kwargs.keys() == _BY_A_WRITE:
        yield recorder.values[call.args[0].index].dtype, call.kwargs["dtype"]


def _written(recorder: Recorder, call: Recorded) -> Pairs:
    """The same, also where the operation itself copies."""
    yield from _converted(recorder, call)
    if str(call.facts.symbol) == "aten.copy.default":
        target, source = (recorder.values[ref.index] for ref in call.args[:2])
        yield source.dtype, target.dtype


_BY_A_WRITE = {"dtype", "layout"}
