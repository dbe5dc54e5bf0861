"""Tolerances that a plugin declares, with reasons."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tj_conformance.executor import probes
from tj_conformance.executor.calls import SPECIAL_VALUES, Call
from tj_conformance.executor.comparison import Differs, Tolerance, same, tolerating
from tj_conformance.executor.kit import AMOUNTS, Amount, Kit
from tj_conformance.executor.operations import matching, operation
from tj_conformance.executor.rounding import Runs
from tj_conformance.executor.running import rounding_of, see
from tj_conformance.executor.subject import subject
from tj_core.extend import Claim, Executor, PluginError, RuleTable, hookimpl
from torch.utils._pytree import tree_leaves


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
    same(exact, eager, "result", Runs(lambda step: eager, lambda step: exact.double()))
    for wrong in (torch.tensor([5.0, 1.0]), torch.tensor([float("inf"), 1.5])):
        with pytest.raises(Differs):
            same(wrong, eager, "result", Runs(lambda step: eager, lambda step: exact.double()))


def test_terms_that_cancel_may_round() -> None:
    values = torch.tensor([1e6, 0.0])
    same(values + torch.tensor([0.0, 0.3]), values, "result")
    with pytest.raises(Differs, match=r"result\[0\]: Tensor-likes are not close"):
        same(values + torch.tensor([0.0, 30.0]), values, "result")
    with tolerating(Tolerance(bitwise=True)), pytest.raises(Differs):
        same(values + torch.tensor([0.0, 0.3]), values, "result")


def seen(op: str, values: str) -> tuple[Any, Any, Runs]:
    """Eager's results with gradients for special values, twice, and its roundings."""
    tested = operation(op)
    call = next(tested.calls("float32", 1)).filled(SPECIAL_VALUES[values])
    f = tested.function()
    results = [see(f, call, "gradients").results for _ in range(2)]
    return results[0], results[1], rounding_of(f, call, "gradients")


def test_values_that_rounding_decides_are_no_finding() -> None:
    """The gradient of `qr` of a matrix of ones is infinite or NaN as rounding has it."""
    got, expected, runs = seen("linalg.qr", "ones")
    got[1][0].fill_(float("inf"))
    with tolerating(Tolerance()) as noted:
        same(got, expected, "result", runs)
    assert len(noted) == 1
    with pytest.raises(Differs):
        same(got, expected, "result")
    got[0][1].detach()[0, 0] += 1e-3  # of the triangular matrix all is known
    with pytest.raises(Differs):
        same(got, expected, "result", runs)


@pytest.mark.parametrize("op", ["sin", "ceil", "nn.functional.dropout"])
def test_a_wrong_value_is_no_rounding(op: str) -> None:
    """Not of large arguments, where a function jumps, or of random numbers."""
    got, expected, runs = seen(op, "ones" if op == "ceil" else "large")
    same(got, expected, "result", runs)
    out = tree_leaves(got)[0].detach().view(-1)
    out[0] = 2.0 if op == "ceil" else out[0] + 1e-3 * (1 + abs(out[0]))
    with pytest.raises(Differs):
        same(got, expected, "result", runs)


def test_random_numbers_are_the_same_for_both_programs() -> None:
    """A result that is kept is compared after other calls drew."""
    f, call = torch.nn.functional.dropout, Call((torch.ones(50, requires_grad=True),))
    probes.kept(lambda f: f, f, call, "gradients")
