"""The executors: what they claim, and what they ask before they do.

One runs products as they are, also inside of regions. The other one, there if the user says that
parameters are frozen, is asked before it and runs layers whose weights it has packed; before both,
if the user wants that, the one of `epilogues`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tj_core.extend import BoundSymbol, Claim, Decline, Executor, RuleTable, TensorProxy

from tj_onednn import kernels, packing
from tj_onednn.choice import Candidate, Choices
from tj_onednn.epilogues import epilogue_executor
from tj_onednn.layers import CONVOLUTION, LINEAR, NO_PRODUCT, disabled, no_images, product_in
from tj_onednn.operands import factors, tensors_of, unfit
from tj_onednn.options import Options

__all__ = ["FROZEN", "PackedExecutor", "onednn_executors"]

Check = Callable[[BoundSymbol], "bool | Decline"]

BATCH = 16
"""Products of a stack at most: one call of an operator for each."""

FROZEN = "FROZEN"
"""The tag of inputs of a program that are the weights of layers; parameters are frozen then."""

KERNELS: dict[str, Callable[..., Any]] = {
    "aten.mm.default": kernels.mm,
    "aten.addmm.default": kernels.addmm,
    "aten.bmm.default": kernels.bmm,
    "aten.baddbmm.default": kernels.baddbmm,
}


@dataclass(frozen=True, slots=True)
class PackedExecutor(Executor):
    """An executor that has ``weights`` packed."""

    weights: packing.Weights = field(default_factory=packing.Weights, compare=False)


def onednn_executors(options: Options) -> tuple[Executor, ...]:
    """The records of the executors, in the order to ask them."""
    products = _Products(options, Choices(options))
    plain = products.executor()
    packed = (_packed(products),) if options.freeze else ()
    epilogues = (epilogue_executor(products.choices, products.alone),) if options.epilogues else ()
    return (*epilogues, *packed, plain)


@dataclass
class _Products:
    """Who runs products, by ``options``."""

    options: Options
    choices: Choices
    candidates: dict[str, Candidate] = field(default_factory=dict)

    def executor(self) -> Executor:
        """The executor of products as they are."""
        claims: RuleTable[Claim] = RuleTable("claim")
        for name, kernel in KERNELS.items():
            run = self.rounded(kernel)
            self.candidates[name] = Candidate(self.options.precision, run)
            claims.set(name, Claim(run, self.product, traceable=True))
        claims.set(LINEAR, Claim(self.rounded(kernels.linear), self.linear, traceable=True))
        return Executor("onednn", claims, fingerprint=self.choices.fingerprint)

    def rounded(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        return kernels.rounded(kernel) if self.options.precision == "bfloat16" else kernel

    def product(self, call: BoundSymbol) -> bool | Decline:
        """Whether a product is taken."""
        reason = self.unfit_product(call)
        if reason is not None:
            return Decline(reason)
        return self.choices.ask(call, self.candidates[call.symbol.qualname])

    def unfit_product(self, call: BoundSymbol) -> str | None:
        """Why a product is not measured, or None."""
        reason = disabled() or unfit(call) or _shapes(call)
        if reason is not None:
            return reason
        *_, a, b = tensors_of(call.flat_args)
        small = self.options.choose == "measure" and factors(a, b) < self.options.minimum
        return "it is too small to gain by it" if small else None

    def alone(self, call: BoundSymbol) -> Callable[..., Any] | None:
        """What runs a linear layer where it is taken."""
        taken = call.symbol.qualname == LINEAR and self.linear(call) is True
        return self.rounded(kernels.linear) if taken else None

    def linear(self, call: BoundSymbol) -> bool | Decline:
        """Whether a linear layer is taken whole: where the product in it is."""
        reason = unfit(call)
        if reason is not None:
            return Decline(reason)
        inner = product_in(call)
        return self.product(inner) if inner is not None else Decline(NO_PRODUCT)


def _packed(products: _Products) -> PackedExecutor:
    """The executor of layers with packed weights."""
    weights, rounds = packing.Weights(), products.options.precision == "bfloat16"
    linear, convolution = packing.linear(weights, rounds), packing.convolution(weights)

    def candidate(kernel: Callable[..., Any], way: str) -> Candidate:
        return Candidate(f"packed {way}", kernel, lambda args: weights.hold([args[1]]))

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
        best = products.choices.ratio(inner, products.candidates[inner.symbol.qualname])
        packed = candidate(linear, products.options.precision)
        return products.choices.ask(call, packed, best)

    def check_convolution(call: BoundSymbol) -> bool | Decline:
        reason = disabled() or _unfrozen(call) or unfit(call, by_rows=False) or no_images(call)
        if reason is not None:
            return Decline(reason)
        return products.choices.ask(call, candidate(convolution, "float32"))

    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set(LINEAR, Claim(linear, check_linear))
    claims.set(CONVOLUTION, Claim(convolution, check_convolution))
    fingerprint = products.choices.fingerprint
    return PackedExecutor("onednn_packed", claims, fingerprint=fingerprint, weights=weights)


def _unfrozen(call: BoundSymbol) -> str | None:
    """Why the weight of a layer is none to pack, or None."""
    weight = call.args[1] if len(call.args) > 1 else None
    if isinstance(weight, TensorProxy) and FROZEN in weight.tags:
        return None
    return "its weight is not a frozen input of the program"


def _shapes(call: BoundSymbol) -> str | None:
    """Why the sizes or factors of ``call`` do not fit oneDNN's operators."""
    if any(value != 1 for _, value in call.kwargs):
        return "it has factors other than 1"
    *other, a, _ = tensors_of(call.flat_args)
    count = a.shape[0] if a.ndim == 3 else 1
    if isinstance(count, int) and count > BATCH:
        return f"it is {count} products, and more than {BATCH} are not taken one by one"
    out = call.flat_outs[0]
    assert isinstance(out, TensorProxy)
    row = out.shape[-1:] if a.ndim == 2 else None
    if not other or other[0].shape == row:
        return None
    if other[0].shape != out.shape:
        return "what is added is neither a row nor as large as the result"
    if out.dtype.name != "float32":
        return "PyTorch adds before it rounds, and oneDNN's operator after it"
    return None
