"""The executor: what it claims, and what it asks before it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tj_core.extend import BoundSymbol, Claim, Decline, Executor, RuleTable, TensorProxy

from tj_onednn import kernels
from tj_onednn.choice import Choices
from tj_onednn.operands import factors, tensors_of, unfit
from tj_onednn.options import Options

__all__ = ["onednn_executor"]

Check = Callable[[BoundSymbol], "bool | Decline"]

BATCH = 16
"""Products of a stack at most: one call of an operator for each."""

SINGLE = ("aten.mm.default", "aten.addmm.default")
KERNELS: dict[str, Callable[..., Any]] = {
    "aten.mm.default": kernels.mm,
    "aten.addmm.default": kernels.addmm,
    "aten.bmm.default": kernels.bmm,
    "aten.baddbmm.default": kernels.baddbmm,
}


def onednn_executor(options: Options) -> Executor:
    """The record of the executor."""
    choices = Choices(options)
    claims: RuleTable[Claim] = RuleTable("claim")
    checks: dict[str, Check] = {}
    for name, kernel in KERNELS.items():
        run = kernels.rounded(kernel) if options.precision == "bfloat16" else kernel
        checks[name] = _check(run, choices, options)
        claims.set(name, Claim(run, checks[name], traceable=True))
    linear = kernels.linear
    run = kernels.rounded(linear) if options.precision == "bfloat16" else linear
    claims.set("torch.nn.functional.linear", Claim(run, _of_product(checks), traceable=True))
    return Executor("onednn", claims)


def _check(kernel: Callable[..., Any], choices: Choices, options: Options) -> Check:
    """Whether ``kernel`` is to run a call."""

    def check(call: BoundSymbol) -> bool | Decline:
        reason = _disabled() or unfit(call) or _shapes(call)
        if reason is not None:
            return Decline(reason)
        *_, a, b = tensors_of(call.flat_args)
        small = options.choose == "measure" and factors(a, b) < options.minimum
        return Decline("it is too small to gain by it") if small else choices.ask(call, kernel)

    return check


def _of_product(checks: dict[str, Check]) -> Check:
    """Whether a linear layer is taken whole: where the product in it is."""

    def check(call: BoundSymbol) -> bool | Decline:
        reason = unfit(call)
        if reason is not None:
            return Decline(reason)
        inner = call.body.calls if call.body is not None else ()
        products = [c for c in inner if c.symbol.qualname in SINGLE]
        if len(products) != 1:
            return Decline("it is not one product of matrices")
        product = products[0]
        return checks[product.symbol.qualname](product)

    return check


def _disabled() -> str | None:
    if not torch.backends.mkldnn.enabled:  # a guard of every program with a product
        return "torch.backends.mkldnn.enabled is false"
    if torch.get_float32_matmul_precision() != "highest":
        return "set_float32_matmul_precision has chosen PyTorch's kernels for it"
    return None


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
