"""The executor: the calls that it claims, and their kernels."""

from __future__ import annotations

from tj_core.extend import BoundSymbol, Claim, Decline, Executor, Pair, RuleTable, TensorProxy

from tj_example_subclass import kernels
from tj_example_subclass.tensor import Precise

__all__ = ["executor"]

TYPE = f"{Precise.__module__}.{Precise.__qualname__}"


def executor() -> Executor:
    """Make the executor.

    The name of the class in the key makes this a claim for products of these tensors: it gets the
    whole call, forward and backward. A claim for ``torch.mul`` would be for plain tensors.
    """
    claims: RuleTable[Claim] = RuleTable("claim")
    pair = Pair(kernels.forward, kernels.backward)
    claims.set("Precise.torch.mul", Claim(kernels.product, check=_of_two, pair=pair))
    return Executor("example_subclass", claims)


def _of_two(call: BoundSymbol) -> bool | Decline:
    """Decide if ``call`` multiplies two of these tensors, of one shape and with equal strides."""
    if call.kwargs or len(call.args) != 2:
        return Decline("is called with more than two arguments")
    x, y = call.args
    for p in (x, y):
        if not isinstance(p, TensorProxy) or p.subclass is None or p.subclass.type != TYPE:
            return Decline("one factor is no Precise tensor")
    if (x.shape, x.strides) != (y.shape, y.strides):
        return Decline("the factors have other shapes or strides")
    return True
