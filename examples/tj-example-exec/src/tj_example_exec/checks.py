"""When the executor takes a call. A check sees one call's metadata, never data.

It answers True, or `Decline` with a reason; ``tj.explain`` shows the reason to the user, so it
says what was found and what would do. What a check relies on must be something tj guards: types,
data types, devices, fixed sizes, constants, tags.
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
    """The check that all of ``checks`` must pass; the first that declines gives the reason."""

    def check(call: BoundSymbol) -> bool | Decline:
        for each in checks:
            verdict = each(call)
            if verdict is not True:
                return verdict
        return True

    return check


def not_tagged(call: BoundSymbol) -> bool | Decline:
    """Leave alone what the user tagged: the call itself, or a value it reads."""
    if SKIP.name in call.tags or any(SKIP.name in p.tags for p in call.flat_args):
        return Decline(f"tagged {SKIP.name}")
    return True


def plain(call: BoundSymbol) -> bool | Decline:
    """Take dense float32 tensors on the CPU; outputs too, so that autocast cannot slip through."""
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
    """Take calls that ``kernel`` can be called for, with ``constants`` as arguments.

    ``kernel`` has the operation's signature, with the defaults of arguments that are not given.
    What it lacks, such as ``out=``, it cannot honour.
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
