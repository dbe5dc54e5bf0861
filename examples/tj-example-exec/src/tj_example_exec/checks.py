"""Checks: the executor's conditions for taking a call. A check sees metadata of one call, never
data.

It returns True, or a `Decline` with a reason that ``tj.explain`` shows to the user: the reason
names what was found and what is supported. A check may depend only on properties that tj guards:
types, data types, devices, fixed sizes, constants, tags.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator

from tj_core.extend import BoundSymbol, Decline, SymDim, TensorProxy

from tj_example_exec.plugin import SKIP

__all__ = ["Check", "every", "fits", "large", "not_tagged", "plain"]

Check = Callable[[BoundSymbol], bool | Decline]


def every(*checks: Check) -> Check:
    """Combine ``checks``: all must pass; the first that declines gives the reason."""

    def check(call: BoundSymbol) -> bool | Decline:
        for each in checks:
            verdict = each(call)
            if verdict is not True:
                return verdict
        return True

    return check


def not_tagged(call: BoundSymbol) -> bool | Decline:
    """Decline a call that the user tagged, or that reads a tagged value."""
    if SKIP.name in call.tags or any(SKIP.name in p.tags for p in call.flat_args):
        return Decline(f"tagged {SKIP.name}")
    return True


def plain(call: BoundSymbol) -> bool | Decline:
    """Take dense float32 tensors on the CPU. Outputs are checked too, so autocast calls are
    declined.
    """
    for tensor in _tensors(call):
        if tensor.subclass is not None or tensor.layout != "strided":
            return Decline(f"{tensor.name} is not a plain dense tensor")
        if tensor.dtype.name != "float32":
            return Decline(f"{tensor.name} is {tensor.dtype.name}; only float32 is implemented")
        if tensor.device.type != "cpu":
            return Decline(f"{tensor.name} is on {tensor.device}; the kernels run on the CPU")
        if 0 in tensor.shape:
            return Decline(f"{tensor.name} has no elements")
    return True


def large(min_elements: int) -> Check:
    """Take calls whose first tensor has at least ``min_elements`` elements."""

    def check(call: BoundSymbol) -> bool | Decline:
        if min_elements <= 1:
            return True
        first = next(_tensors(call))
        sizes = [dim for dim in first.shape if not isinstance(dim, SymDim)]
        if len(sizes) < first.ndim:
            return Decline(f"the size of {first.name} is not known before it runs")
        count = math.prod(sizes)
        if count < min_elements:
            return Decline(f"{first.name} has {count} elements; min_elements is {min_elements}")
        return True

    return check


def fits(kernel: Callable[..., object], **constants: object) -> Check:
    """Take calls whose arguments ``kernel`` accepts, with ``constants`` as the values of some.

    ``kernel`` has the operation's signature and defaults. A call with an argument that it lacks,
    such as ``out=``, is declined.
    """
    signature = inspect.signature(kernel)

    def check(call: BoundSymbol) -> bool | Decline:
        try:
            bound = signature.bind(*call.args, **dict(call.kwargs))
        except TypeError as error:
            return Decline(f"called with arguments the kernel lacks: {error}")
        bound.apply_defaults()
        for name, wanted in constants.items():
            value = bound.arguments[name]
            if value != wanted:
                return Decline(f"{name}={value!r}; only {name}={wanted!r} is implemented")
        return True

    return check


def _tensors(call: BoundSymbol) -> Iterator[TensorProxy]:
    return (p for p in (*call.flat_args, *call.flat_outs) if isinstance(p, TensorProxy))
