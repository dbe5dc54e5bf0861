"""Tolerances that a plugin declares, with reasons."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tj_conformance.executor.comparison import Differs, Tolerance, same, tolerating
from tj_conformance.executor.kit import AMOUNTS, Amount, Kit
from tj_conformance.executor.operations import matching
from tj_conformance.executor.subject import subject
from tj_core.extend import Claim, Executor, PluginError, RuleTable, hookimpl


class Coarse:
    """Computes `tanh` to three digits, and says so if ``rule`` is given."""

    tj_name = "coarse"

    def __init__(self, rule: Any = None) -> None:
        self.rule = rule

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set("torch.tanh", Claim(lambda x: torch.tanh(x) * 1.0004))
        return (Executor("coarse", claims),)

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[Any], ...]:
        table: RuleTable[Any] = RuleTable("tolerance")
        if self.rule is not None:
            table.set("torch.tanh", self.rule)
        return (table,)


@pytest.mark.parametrize("bitwise", [False, True])
@pytest.mark.parametrize("declared", [False, True])
def test_a_declared_tolerance_counts_unless_bits_are_compared(
    declared: bool, bitwise: bool
) -> None:
    rule = {"float32": (1e-2, 1e-2, "three digits suffice")} if declared else None
    tested = subject("coarse", [Coarse(rule), "torch", "autograd"])
    kit = Kit(tested, Amount(1, 0, False), bitwise, first=True, dtypes=("float32",))
    (cell,) = kit.run(matching(["tanh"]))
    assert bool(cell.findings) is (bitwise or not declared)
    expected = ("torch.tanh in float32: rtol 0.01, atol 0.01, because three digits suffice",)
    assert kit.report.tolerances == (expected if declared else ())


def test_a_tolerance_without_a_reason_is_an_error() -> None:
    tested = subject("coarse", [Coarse({"float32": (1e-2, 1e-2, "")}), "torch", "autograd"])
    with pytest.raises(PluginError, match="plugin 'coarse' declares the tolerance"):
        list(Kit(tested, AMOUNTS["fast"], dtypes=("float32",)).run(matching(["tanh"])))


def test_double_precision_decides_where_eager_is_wrong() -> None:
    eager, exact = torch.tensor([float("nan"), 1.0]), torch.tensor([float("inf"), 1.0])
    same(exact, eager, "result", exact.double)
    for wrong in (torch.tensor([5.0, 1.0]), torch.tensor([float("inf"), 1.5])):
        with pytest.raises(Differs):
            same(wrong, eager, "result", exact.double)


def test_terms_that_cancel_may_round() -> None:
    values = torch.tensor([1e6, 0.0])
    same(values + torch.tensor([0.0, 0.3]), values, "result")
    with pytest.raises(Differs, match=r"result\[0\]: Tensor-likes are not close"):
        same(values + torch.tensor([0.0, 30.0]), values, "result")
    with tolerating(Tolerance(bitwise=True)), pytest.raises(Differs):
        same(values + torch.tensor([0.0, 0.3]), values, "result")
