"""Gradient rules of tj-autograd itself, which save less than PyTorch's autograd does.

They have the form of a plugin's rules and are in a table of their own, which is looked up after the
plugins' table. An operation has a rule here only if its derived rule saves more:
``tests/joint/test_hot_*.py`` compare the two.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from tj_core.extend import BoundSymbol, Decline, NumberProxy, RuleTable, TensorProxy
from tj_torch.internal import is_sized

from tj_autograd.joint.rules import GradRule

__all__ = ["BUILTIN", "rules"]

BUILTIN = "grad-builtin"
"""Name of the rule table."""


def rules() -> RuleTable[GradRule]:
    """Make the table of these rules."""
    table: RuleTable[GradRule] = RuleTable(BUILTIN, rule_type=GradRule)
    table.set("torch.nn.functional.dropout", GradRule(_functional, _dropout_backward, _draws))
    table.set("torch.dropout", GradRule(_dropout, _dropout_backward, _draws))
    return table


# ---------------------------------------------------------------------------- dropout
#
# Where there is no fused kernel (on the CPU) PyTorch saves the factors 0 and 1 / (1 - p) in the
# input's type, four bytes for each element, where one byte tells which of the two it was.


def _functional(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> tuple[torch.Tensor, tuple[Any, ...]]:
    return _dropout(input, p, training)


def _dropout(input: torch.Tensor, p: float, train: bool) -> tuple[torch.Tensor, tuple[Any, ...]]:
    factors = torch.empty_like(input).bernoulli_(1 - p)
    kept = factors.bool()
    return input * factors.div_(1 - p), (kept, p)


def _dropout_backward(saved: tuple[Any, ...], grad: torch.Tensor) -> tuple[torch.Tensor]:
    kept, p = saved
    return (grad * kept.to(grad.dtype).div(1 - p),)


def _draws(call: BoundSymbol) -> bool | Decline:
    """Check that the call multiplies its input by random factors, as PyTorch's composite dropout
    does.
    """
    x, p = call.flat_args[0], _probability(call)
    if not isinstance(x, TensorProxy) or isinstance(p, NumberProxy):
        return Decline("the probability is no constant")
    if x.device.type != "cpu" or x.dtype.kind != "float":
        return Decline("PyTorch has a kernel that saves a mask")
    drawn = any(r.startswith("random") for r in call.effects.ordered)
    if not drawn or call.effects.aliases or not 0 < p < 1 or not _has_elements(x):
        return Decline("it draws no numbers")
    return True


def _probability(call: BoundSymbol) -> Any:
    given = dict(call.kwargs)
    return call.args[1] if len(call.args) > 1 else given.get("p", 0.5)


def _has_elements(x: TensorProxy) -> bool:
    return is_sized(x) or math.prod(n for n in x.shape if isinstance(n, int)) > 0
