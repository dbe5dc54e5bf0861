"""Layers that may run in int8: their operands, and reasons why one does not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tj_core.extend import BoundSymbol, SymDim, TensorProxy, is_contiguous
from tj_torch.extend import is_on

from tj_onednn.adapter import apart
from tj_onednn.int8.kernels import sums_are_exact

__all__ = [
    "DECLINED",
    "DTYPES",
    "FEW",
    "LAYERS",
    "NO_CONSTANT",
    "STATIC",
    "Layer",
    "layer",
    "saturates",
    "unfit",
    "unfit_for_weights",
    "unfit_weight",
]

DECLINED = "INT8_DECLINED"
"""Tag of a layer that stays in floating point; its value is the reason."""

STATIC = "STATIC_MEMORY_LOCATION"

NO_CONSTANT = "its weight is no parameter or buffer of a module"

DTYPES = ("float32", "bfloat16", "float16")

LONGEST = (2**31 - 1) // 127**2
"""Most terms of a sum of products that no int32 overflows by."""

STEP = 32
"""PyTorch's kernel reads behind a row of a weight whose length is no multiple of its vectors."""

FEW = 8
"""Most rows for which int8 weights are read faster than float32 ones are multiplied."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Operands of a layer; ``transposed`` if the weight is ``[k, n]``."""

    x: Any
    weight: Any
    bias: Any = None
    transposed: bool = False
    plain: bool = True

    @property
    def sizes(self) -> tuple[Any, Any]:
        """The sizes ``n`` and ``k`` of the weight."""
        first, second = self.weight.shape
        return (second, first) if self.transposed else (first, second)


def _bound(call: BoundSymbol, *names: str) -> Mapping[str, Any]:
    return dict(zip(names, call.args, strict=False)) | dict(call.kwargs)


def _linear(call: BoundSymbol) -> Layer:
    given = _bound(call, "input", "weight", "bias")
    return Layer(given["input"], given["weight"], given.get("bias"))


def _addmm(call: BoundSymbol) -> Layer:
    given = _bound(call, "input", "mat1", "mat2")
    given = {"input": given.get("self"), **given}  # the operator's name for it
    plain = given.get("beta", 1) == 1 and given.get("alpha", 1) == 1
    return Layer(given["mat1"], given["mat2"], given["input"], True, plain)


def _product(*names: str) -> Callable[[BoundSymbol], Layer]:
    def read(call: BoundSymbol) -> Layer:
        first, second = list(_bound(call, *names).values())[:2]
        return Layer(first, second, transposed=True)

    return read


LAYERS: Mapping[str, Callable[[BoundSymbol], Layer]] = {
    "torch.nn.functional.linear": _linear,
    "torch.addmm": _addmm,
    "torch.mm": _product("input", "mat2"),
    "torch.matmul": _product("input", "other"),
    "aten.addmm.default": _addmm,
    "aten.mm.default": _product("self", "mat2"),
}
"""Readers of a call's operands, by the call's symbol."""


def layer(call: BoundSymbol) -> Layer | None:
    """The operands of ``call``, if it multiplies a matrix by a matrix that may be a weight."""
    read = LAYERS.get(call.symbol.qualname)
    found = None if read is None else read(call)
    if found is None or not isinstance(found.weight, TensorProxy):
        return None
    fits = isinstance(found.x, TensorProxy) and found.weight.ndim == 2 and found.x.ndim >= 1
    return found if fits else None


@functools.cache
def saturates() -> str | None:
    """Reason why no activations are multiplied in int8 on this machine, or None."""
    with apart():
        exact = sums_are_exact()
    return None if exact else "sums of int8 products saturate on this processor, which has no VNNI"


def unfit(call: BoundSymbol, operands: Layer) -> str | None:
    """Reason why ``call`` does not run in int8, or None."""
    if is_on(call.context):
        return "it runs under autocast"
    tensors = [p for p in (operands.x, operands.weight, operands.bias) if p is not None]
    reason = next(filter(None, map(_unfit, tensors)), None)
    if reason is not None:
        return reason
    n, k = operands.sizes
    if isinstance(n, SymDim) or isinstance(k, SymDim):
        return "the sizes of its weight are symbols"
    if n == 0 or k == 0:
        return "its weight has no elements"
    if k > LONGEST:
        return f"sums of {k} products may overflow int32"
    if not operands.plain:
        return "it has factors other than 1"
    if operands.bias is not None and tuple(operands.bias.shape) not in ((n,), (1, n)):
        return "what is added is no row"
    return None


def _unfit(p: Any) -> str | None:
    if not isinstance(p, TensorProxy) or p.subclass is not None or p.layout != "strided" or p.flags:
        return "an argument is no plain tensor"
    if p.device.type != "cpu":
        return f"it is on {p.device}"
    return None if p.dtype.name in DTYPES else f"{p.dtype.name} is not rounded to int8"


def unfit_weight(weight: TensorProxy, transposed: bool) -> str | None:
    """Reason why ``weight``, a module's tensor before casts, is not multiplied in int8, or None."""
    if weight.dtype.name != "int8":
        return _unfit(weight)
    by_rows = not transposed and is_contiguous(weight)
    return None if by_rows else "its weight is int8 already, and not laid out by rows"


def unfit_for_weights(operands: Layer) -> str | None:
    """Reason why the weight alone is not int8, or None."""
    _, k = operands.sizes
    if k % STEP:
        return f"PyTorch's kernel multiplies no rows of {k} elements: {STEP} must divide it"
    rows = 1
    for n in operands.x.shape[:-1]:
        if not isinstance(n, int):
            return None  # as many as there are
        rows *= n
    if rows > FEW:
        return f"for {rows} rows, int8 weights alone gain nothing"
    return None
