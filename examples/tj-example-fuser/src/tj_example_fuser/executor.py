"""Regions of elementwise operations as expressions that numexpr evaluates in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numexpr
import numpy as np
import torch
from tj_core.extend import (
    BoundSymbol,
    Claim,
    Decline,
    Executor,
    Fused,
    Fusion,
    FusionRegion,
    Proxy,
    RuleTable,
    TensorProxy,
    is_contiguous,
)

__all__ = ["executor"]

TEXT = {
    "aten.add.Tensor": "({} + {})",
    "aten.sub.Tensor": "({} - {})",
    "aten.mul.Tensor": "({} * {})",
    "aten.div.Tensor": "({} / {})",
    "aten.neg.default": "(-{})",
    "aten.exp.default": "exp({})",
    "aten.log.default": "log({})",
    "aten.sqrt.default": "sqrt({})",
    "aten.sin.default": "sin({})",
    "aten.cos.default": "cos({})",
    "aten.tanh.default": "tanh({})",
}
"""Form of each operator in an expression of numexpr."""


def can_fuse(call: BoundSymbol) -> bool | Decline:
    """Decide if ``call`` is elementwise, on contiguous CPU tensors, all in float32 or all in
    float64.
    """
    if call.symbol.qualname not in TEXT:
        return Decline("numexpr has no such operation")
    if call.kwargs:
        return Decline("it scales an argument")
    values = [p for p in (*call.flat_args, *call.flat_outs) if isinstance(p, TensorProxy)]
    if {p.dtype.name for p in values} not in ({"float32"}, {"float64"}):
        return Decline("it has other data types than float32, or float64, alone")
    fits = all(isinstance(a, TensorProxy | int | float) for a in call.args)
    if not fits or not all(map(_plain, values)):
        return Decline("it has other arguments than contiguous CPU tensors and numbers")
    return True


def _plain(p: TensorProxy) -> bool:
    return is_contiguous(p) and p.device.type == "cpu" and not p.flags


def same_shape(calls: Sequence[BoundSymbol]) -> bool | Decline:
    """Decide if ``calls`` are one loop: nothing is broadcast."""
    values = [p for c in calls for p in (*c.flat_args, *c.flat_outs)]
    shapes = {p.shape for p in values if isinstance(p, TensorProxy)}
    return True if len(shapes) == 1 else Decline("its tensors have several shapes")


def fuse(region: FusionRegion) -> Fused:
    """Compile the region: one expression for each value that is
    returned, or read more than once.
    """
    steps, numbers = _expressions(region)
    names, results = [p.name for p in region.inputs], [p.name for p in region.outputs]

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        values = {n: x.numpy() for n, x in zip(names, inputs, strict=True)} | numbers
        for name, text in steps:
            values[name] = numexpr.evaluate(text, local_dict=values, global_dict={}, order="C")
        return [torch.from_numpy(np.asarray(values[name])) for name in results]

    return Fused(run, source="\n".join(f"{name} = {text}" for name, text in steps))


def _expressions(region: FusionRegion) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Names and expressions in order; constants by name, in the data type of the tensors."""
    uses = Counter(p.name for call in region.body.calls for p in call.flat_args)
    returned = {p.name for p in region.outputs}
    texts, numbers = {p.name: p.name for p in region.inputs}, dict[str, Any]()
    steps: list[tuple[str, str]] = []
    for call in region.body.calls:
        kind = np.dtype(call.outputs.dtype.name).type
        words = []
        for argument in call.args:
            if isinstance(argument, Proxy):
                words.append(texts[argument.name])
            else:
                words.append(f"n{len(numbers)}")
                numbers[words[-1]] = kind(argument)
        name = call.outputs.name
        texts[name] = TEXT[call.symbol.qualname].format(*words)
        if name in returned or uses[name] > 1:
            steps.append((name, texts[name]))
            texts[name] = name
    return steps, numbers


def executor() -> Executor:
    """Make the executor."""
    claims: RuleTable[Claim] = RuleTable("claim")  # no call is claimed for itself
    return Executor("example_fuser", claims, fusion=Fusion(can_fuse, fuse, check=same_shape))
