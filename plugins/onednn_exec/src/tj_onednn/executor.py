"""The executors: their claims, and the checks of these.

One runs products with plain weights, also inside of regions. With option ``freeze`` a second is
asked before it, and runs layers whose weights are packed. With option ``epilogues`` the one of
`epilogues` is asked before both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    BoundSymbol,
    Claim,
    Decline,
    Executor,
    Packaging,
    RuleTable,
    TensorProxy,
)

from tj_onednn import adapter, kernels, packing
from tj_onednn.choice import Candidate, Choices
from tj_onednn.epilogues import epilogue_executor
from tj_onednn.layers import (
    CONVOLUTION,
    LINEAR,
    NO_PRODUCT,
    RECURRENT,
    disabled,
    no_images,
    not_pointwise,
    pixel_factors,
    product_in,
)
from tj_onednn.names import CONVOLUTIONS, PACKED, look, lost
from tj_onednn.operands import factors, tensors_of, unfit

if TYPE_CHECKING:
    from tj_onednn.options import Options

__all__ = ["FROZEN", "PackedExecutor", "onednn_executors"]

Check = Callable[[BoundSymbol], "bool | Decline"]

BATCH = 16
"""Largest batch of a batched product, which runs one operator call for each matrix."""

TOO_SMALL = "it is too small to gain by it"

FROZEN = "FROZEN"
"""Tag of program inputs that are weights of layers, where parameters are frozen."""

KERNELS: dict[str, Callable[..., Any]] = {
    "aten.mm.default": kernels.mm,
    "aten.addmm.default": kernels.addmm,
    "aten.bmm.default": kernels.bmm,
    "aten.baddbmm.default": kernels.baddbmm,
}


POINTWISE: dict[str, Callable[..., Any]] = {
    "aten.convolution.default": kernels.pointwise,
    "aten.convolution_backward.default": kernels.pointwise_backward,
}


@dataclass(frozen=True, slots=True)
class PackedExecutor(Executor):
    """An executor with packed ``weights``."""

    weights: packing.Weights = field(default_factory=packing.Weights, compare=False)


def onednn_executors(options: Options) -> tuple[Executor, ...]:
    """Make the executors, in the order in which they are asked."""
    look()
    products = _Products(options, Choices(options))
    plain = products.executor()
    packed = (_packed(products),) if options.freeze else ()
    epilogues = (epilogue_executor(products.choices, products.alone),) if options.epilogues else ()
    return (*epilogues, *packed, plain)


@dataclass
class _Products:
    """Claims of products, by ``options``."""

    options: Options
    choices: Choices
    candidates: dict[str, Candidate] = field(default_factory=dict)

    def executor(self) -> Executor:
        """Make the executor of products with plain weights."""
        claims: RuleTable[Claim] = RuleTable("claim")
        for name, kernel in KERNELS.items():
            run = self.rounded(kernel)
            self.candidates[name] = Candidate(self.options.precision, run)
            claims.set(name, Claim(run, self.product, traceable=True))
        claims.set(LINEAR, Claim(self.rounded(kernels.linear), self.linear, traceable=True))
        for name, kernel in POINTWISE.items():
            claims.set(name, Claim(kernel, self.pointwise, traceable=True))
        return Executor(
            "onednn",
            claims,
            fingerprint=self.choices.fingerprint,
            packaging=Packaging(
                options={"precision": self.options.precision}, unavailable=disabled
            ),
        )

    def rounded(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        return kernels.rounded(kernel) if self.options.precision == "bfloat16" else kernel

    def product(self, call: BoundSymbol) -> bool | Decline:
        """Decide if a product is taken."""
        reason = self.unfit_product(call)
        if reason is not None:
            return Decline(reason)
        return self.choices.ask(call, self.candidates[call.symbol.qualname])

    def unfit_product(self, call: BoundSymbol) -> str | None:
        """Reason why a product is not measured; None if it is."""
        reason = disabled() or unfit(call) or _shapes(call)
        if reason is not None:
            return reason
        *_, a, b = tensors_of(call.flat_args)
        return TOO_SMALL if self.is_small(factors(a, b)) else None

    def is_small(self, multiplications: int) -> bool:
        """Decide if so few multiplications are not worth a measurement."""
        return self.options.choose == "measure" and multiplications < self.options.minimum

    def pointwise(self, call: BoundSymbol) -> bool | Decline:
        """Decide if a convolution with a kernel of one pixel, or its backward, is taken."""
        reason = disabled() or lost(CONVOLUTIONS) or unfit(call, by_rows=False)
        reason = reason or no_images(call) or not_pointwise(call)
        if reason is None and self.is_small(pixel_factors(call)):
            reason = TOO_SMALL
        if reason is not None:
            return Decline(reason)
        return self.choices.ask(call, Candidate("float32", POINTWISE[call.symbol.qualname]))

    def alone(self, call: BoundSymbol) -> Callable[..., Any] | None:
        """The kernel for a linear layer outside of a pair, if it is taken; else None."""
        taken = call.symbol.qualname == LINEAR and self.linear(call) is True
        return self.rounded(kernels.linear) if taken else None

    def linear(self, call: BoundSymbol) -> bool | Decline:
        """Decide if a linear layer is taken: it is if its product is."""
        reason = unfit(call)
        if reason is not None:
            return Decline(reason)
        inner = product_in(call)
        return self.product(inner) if inner is not None else Decline(NO_PRODUCT)


def _packed(products: _Products) -> PackedExecutor:
    """Make the executor of layers with packed weights."""
    weights, rounds = packing.Weights(), products.options.precision == "bfloat16"
    linear, convolution = packing.linear(weights, rounds), packing.convolution(weights)
    recurrent = packing.recurrent(weights)

    def candidate(kernel: Callable[..., Any], way: str) -> Candidate:
        return Candidate(f"packed {way}", kernel, lambda args: weights.hold([args[1]]))

    def check_recurrent(call: BoundSymbol) -> bool | Decline:
        # The last result, a workspace for training, has no elements.
        reason = disabled() or _unfrozen(call, 1) or _unfrozen(call, 2)
        reason = reason or unfit(call, by_rows=False, outs=call.flat_outs[:3])
        if reason is not None:
            return Decline(reason)
        packed = Candidate(
            "packed float32",
            lambda *args: tuple(recurrent(*args)[:3]),
            lambda args: weights.hold(args[1:3]),
            lambda *args: adapter.RECURRENT(*args)[:3],
        )
        return products.choices.ask(call, packed)

    def check_linear(call: BoundSymbol) -> bool | Decline:
        reason = _unfrozen(call) or unfit(call)
        inner = product_in(call)
        if reason is None and inner is None:
            reason = NO_PRODUCT
        if reason is not None:
            return Decline(reason)
        assert inner is not None
        reason = products.unfit_product(inner)
        if reason is not None:
            return Decline(reason)
        # Packed weights cost memory: they have to be faster than the plain ones, not only than
        # PyTorch's kernel.
        best = products.choices.ratio(inner, products.candidates[inner.symbol.qualname])
        packed = candidate(linear, products.options.precision)
        return products.choices.ask(call, packed, best)

    def check_convolution(call: BoundSymbol) -> bool | Decline:
        # Convolutions may return channels last; the trial compares the strides.
        reason = disabled() or _unfrozen(call) or unfit(call, by_rows=False) or no_images(call)
        if reason is not None:
            return Decline(reason)
        return products.choices.ask(call, candidate(convolution, "float32"))

    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set(LINEAR, Claim(linear, check_linear))
    claims.set(CONVOLUTION, Claim(convolution, check_convolution))
    claims.set(RECURRENT, Claim(recurrent, check_recurrent))
    fingerprint = products.choices.fingerprint
    return PackedExecutor("onednn_packed", claims, fingerprint=fingerprint, weights=weights)


def _unfrozen(call: BoundSymbol, place: int = 1) -> str | None:
    """Reason why the weight of a layer cannot be packed, argument ``place``; None if it can."""
    weight = call.args[place] if len(call.args) > place else None
    if isinstance(weight, TensorProxy) and FROZEN in weight.tags:
        return lost(PACKED)
    return "its weight is not a frozen input of the program"


def _shapes(call: BoundSymbol) -> str | None:
    """Reason why the sizes or factors of ``call`` do not fit
    oneDNN's operators; None if they do.
    """
    # `alpha` and `beta` of `addmm`: the operator of oneDNN has no place for them.
    if any(value != 1 for _, value in call.kwargs):
        return "it has factors other than 1"
    *other, a, _ = tensors_of(call.flat_args)
    count = a.shape[0] if a.ndim == 3 else 1
    if isinstance(count, int) and count > BATCH:
        return f"it is {count} products, and more than {BATCH} are not taken one by one"
    out = call.flat_outs[0]
    assert isinstance(out, TensorProxy)
    # A bias, which the operator of a linear layer takes; a batched product has none.
    row = out.shape[-1:] if a.ndim == 2 else None
    if not other or other[0].shape == row:
        return None
    if other[0].shape != out.shape:
        return "what is added is neither a row nor as large as the result"
    if out.dtype.name != "float32":
        return "PyTorch adds before it rounds, and oneDNN's operator after it"
    return None
