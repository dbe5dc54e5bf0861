"""Time of elementwise functions on a CPU, where arithmetic takes longer than memory does.

On a GPU, memory sets the time of elementwise kernels, and to recompute them inside another kernel
costs nothing. A CPU takes longer for a tanh than for writing its result and reading it again.
"""

from __future__ import annotations

import torch
from tj_core.extend import BoundSymbol, TensorProxy
from tj_torch.extend import byte_size

__all__ = ["BYTES_PER_SECOND", "arithmetic", "memory", "operators"]

BYTES_PER_SECOND = 2e10
"""Memory bandwidth of one CPU thread, a typical value."""

TOGETHER = 4
"""Number of threads at which the memory bandwidth is saturated."""

NANOSECONDS = {
    "acos": 4.0, "acosh": 8.0, "asin": 4.0, "asinh": 20.0, "atan": 3.0, "atan2": 3.0, "atanh": 2.6,
    "cos": 1.8, "cosh": 2.3, "digamma": 17.0, "erf": 1.6, "erfc": 2.2, "erfinv": 10.0, "exp": 1.1,
    "exp2": 1.0, "expm1": 2.2, "gelu": 1.6, "i0": 10.0, "lgamma": 12.0, "log": 1.2, "log10": 1.3,
    "log1p": 1.6, "log2": 1.2, "log_sigmoid_forward": 3.0, "logit": 2.0, "mish": 6.0,
    "polygamma": 20.0, "pow": 6.0, "sigmoid": 1.2, "silu": 1.2, "sin": 1.6, "sinh": 2.5,
    "softplus": 3.0, "tan": 2.1, "tanh": 3.3,
}  # fmt: skip
"""Nanoseconds for one float32 element on one thread, by operator; measured on one processor,
roughly.
"""

_FEW_PRODUCTS = (-2, -1, -0.5, 0, 0.5, 1, 2, 3, 4)
"""Exponents of powers that are computed by products, quotients and square roots."""


def arithmetic(call: BoundSymbol) -> float:
    """Estimate the seconds that ``call`` spends in elementwise functions on a CPU; 0 on other
    devices.
    """
    found = sum(_nanoseconds(part) * _elements(part) for part in operators(call) if part.flat_outs)
    return found * 1e-9 / torch.get_num_threads()


def memory(count: int) -> float:
    """Estimate the seconds to write ``count`` bytes to memory, or to read them."""
    return count / BYTES_PER_SECOND / min(torch.get_num_threads(), TOGETHER)


def operators(call: BoundSymbol) -> tuple[BoundSymbol, ...]:
    """The calls in the body of ``call``; itself if it has none."""
    return call.body.calls if call.body is not None and call.body.calls else (call,)


def _nanoseconds(call: BoundSymbol) -> float:
    name, _, overload = call.symbol.path.partition(".")
    if call.symbol.namespace != "aten" or name not in NANOSECONDS:
        return 0.0
    if not any(isinstance(p, TensorProxy) and p.device.type == "cpu" for p in call.flat_outs):
        return 0.0
    if name == "pow" and overload == "Tensor_Scalar" and call.args[1] in _FEW_PRODUCTS:
        return 0.0
    return NANOSECONDS[name]


def _elements(call: BoundSymbol) -> int:
    out = call.flat_outs[0]
    return byte_size(out) // max(1, out.dtype.bits // 8) if isinstance(out, TensorProxy) else 0
