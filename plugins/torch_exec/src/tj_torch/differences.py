"""Figures of the differences between two tensors, for `tj_core.compare`."""

from __future__ import annotations

import math

import torch
from tj_core.extend import RuleTable
from tj_core.internal import DIFFERENCES, Figures

__all__ = ["figures", "rules"]


def rules() -> RuleTable[object]:
    """Make the rule table with the measure of tensors."""
    table: RuleTable[object] = RuleTable(DIFFERENCES, rule_type=object)
    table.set("torch.Tensor", figures)
    return table


def figures(got: torch.Tensor, expected: torch.Tensor) -> Figures:
    """Measure how ``got`` differs from ``expected``, of the same shape.

    Equal elements differ by nothing, infinities and NaN too; another NaN makes figures NaN.
    """
    a, b = _flat(got), _flat(expected)
    if not a.numel():
        return Figures(0.0, 0.0, 0.0, 1.0)
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, a - b)
    error, size = difference.norm().item(), b.norm().item()
    largest = difference.abs().max().item()
    relative = 0.0 if bool(same.all()) else error / size if size else math.inf
    norms = a.norm().item() * size
    cosine = 1.0 if bool(same.all()) else (a @ b).item() / norms if norms else 0.0
    return Figures(largest, difference.abs().mean().item(), relative, cosine)


def _flat(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().cpu()
    x = x if x.layout is torch.strided else x.to_dense()
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x.reshape(-1).to(torch.float64)
