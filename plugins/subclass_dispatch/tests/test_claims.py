"""Executors that claim an operation on a tensor subclass, as a whole or what is in it."""

from __future__ import annotations

import copy
import copyreg
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_autograd.extend import GradRule
from tj_autograd.run.variants import Variants
from tj_conformance.oracle.compare import assert_equal
from tj_core.extend import (
    BoundSymbol,
    Claim,
    Decline,
    Executor,
    Pair,
    PluginError,
    RuleTable,
    hookimpl,
)
from tj_suites.subclasses.kinds import Labeled
from torch.testing._internal.two_tensor import TwoTensor

pytestmark = pytest.mark.usefixtures("forgotten")

WHOLE = "TwoTensor.torch.mul"
OPERATOR = "TwoTensor.aten.mul.Tensor"


class Owner:
    """An executor called ``name`` with claims for ``keys``; its gradient is ten times too large."""

    def __init__(self, name: str, *keys: str, pair: bool = False) -> None:
        self.tj_name, self.keys, self.pair = name, keys, pair
        self.ran: list[str] = []

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        pair = Pair(self.forward, self.backward) if self.pair else None
        for key in self.keys:
            claims.set(key, Claim(self.run, check=self.check, pair=pair))
        return (Executor(self.tj_name, claims),)

    def check(self, call: BoundSymbol) -> bool | Decline:
        return True

    def run(self, x: Any, y: Any) -> Any:
        self.ran.append(f"run {type(x).__name__}")
        return torch.mul(x, y)

    def forward(self, x: Any, y: Any) -> Any:
        self.ran.append(f"forward {type(x).__name__}")
        return torch.mul(x, y), (x, y)

    def backward(self, saved: Any, g: Any) -> Any:
        self.ran.append(f"backward {type(g).__name__}")
        x, y = saved
        return g * y * 10, g * x * 10


def two(grad: bool = True) -> Any:
    torch.manual_seed(0)
    return TwoTensor(torch.randn(3), torch.randn(3)).requires_grad_(grad)


def product(x: Any, y: Any) -> Any:
    return (x * y).sin()


def gradients(f: Any) -> Any:
    x, y = two(), two()
    f(x, y).sum().backward()
    return x.grad, y.grad


def jitted(*owners: Owner | Rules) -> Any:
    return tj.jit(product, plugins=[*owners, "torch", "autograd", "subclass"])


def test_a_claim_for_a_subclass_gets_whole_calls() -> None:
    owner = Owner("acme", WHOLE)
    g = jitted(owner)
    assert_equal(gradients(g), gradients(product))
    assert set(owner.ran) == {"run TwoTensor"}
    names = [call.symbol.qualname for call in tj.last_trace(g).calls]
    assert f"acme.{WHOLE}" in names
    assert "aten.sin.default" in names


def test_a_pair_owns_forward_and_backward() -> None:
    owner = Owner("acme", WHOLE, pair=True)
    g = jitted(owner)
    mine, eagers = gradients(g), gradients(product)
    assert_equal(mine, tuple(t * 10 for t in eagers))
    assert {"forward TwoTensor", "backward TwoTensor"} <= set(owner.ran)


def test_a_claim_for_an_operator_gets_what_is_inside_in_both_directions() -> None:
    owner = Owner("acme", "aten.mul.Tensor")
    assert_equal(gradients(jitted(owner)), gradients(product))
    assert set(owner.ran) == {"run Tensor"}
    assert len(owner.ran) >= 2 + 4


def test_a_claim_for_an_operator_on_the_subclass_acts_in_both_directions() -> None:
    owner = Owner("acme", OPERATOR)
    g = jitted(owner)
    assert_equal(gradients(g), gradients(product))
    assert owner.ran == ["run TwoTensor"] * 4  # the product, and three in the backward
    for name, count in (("forward", 1), ("backward", 3)):
        ran = [call.symbol.qualname for call in tj.last_trace(g, name).calls]
        assert ran.count(f"acme.{OPERATOR}") == count


def test_a_pair_for_an_operator_is_that_of_calls_that_are_made_of_it() -> None:
    owner = Owner("acme", OPERATOR, pair=True)
    g = jitted(owner)
    mine, eagers = gradients(g), gradients(product)
    assert_equal(mine, tuple(t * 10 for t in eagers))
    assert {"forward TwoTensor", "backward TwoTensor"} <= set(owner.ran)


class Rules:
    """A plugin whose gradient rules for ``keys`` give gradients ten times too large."""

    tj_name = "rules"

    def __init__(self, *keys: str) -> None:
        self.keys, self.owner = keys, Owner("rules")

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[Any], ...]:
        table: RuleTable[Any] = RuleTable("grad")
        for key in self.keys:
            table.set(key, GradRule(self.owner.forward, self.owner.backward))
        return (table,)


@pytest.mark.parametrize("key", [WHOLE, OPERATOR])
def test_a_gradient_rule_for_a_subclass_is_that_of_its_calls(key: str) -> None:
    mine, eagers = gradients(jitted(Rules(key))), gradients(product)
    assert_equal(mine, tuple(t * 10 for t in eagers))


def test_a_gradient_rule_for_plain_tensors_is_not_one_for_a_subclass() -> None:
    rules = Rules("torch.mul", "aten.mul.Tensor")
    assert_equal(gradients(jitted(rules)), gradients(product))
    assert rules.owner.ran == []


@pytest.mark.parametrize("whole_first", [False, True])
def test_the_pair_of_a_whole_call_is_before_that_of_an_operator(whole_first: bool) -> None:
    whole, inside = Owner("whole", WHOLE, pair=True), Owner("inside", OPERATOR, pair=True)
    g = jitted(*((whole, inside) if whole_first else (inside, whole)))
    assert_equal(gradients(g), tuple(t * 10 for t in gradients(product)))
    assert set(whole.ran) == {"forward TwoTensor", "backward TwoTensor"}
    assert "forward TwoTensor" not in inside.ran
    assert "backward TwoTensor" not in inside.ran


@pytest.mark.parametrize("pairs", [False, True])
def test_of_two_executors_with_one_operator_the_first_has_it(pairs: bool) -> None:
    first, second = Owner("first", OPERATOR, pair=pairs), Owner("second", OPERATOR, pair=pairs)
    g = jitted(first, second)
    assert_equal(gradients(g), tuple(t * 10**pairs for t in gradients(product)))
    assert first.ran
    assert not second.ran


def test_a_pair_that_does_not_apply_is_named() -> None:
    """Plain operators are inside of those on the subclass, which autograd sees."""
    inside = Owner("acme", "aten.mul.Tensor", pair=True)
    g = jitted(inside)
    assert_equal(gradients(g), gradients(product))
    changes = tj.last_trace(g, stage="JOINT").history[-1].changes
    said = [why for change in changes for _, why in change.declined]
    assert any(f"is for plain tensors; here its key is {OPERATOR}" in why for why in said), said


def test_a_plain_claim_never_sees_a_subclass() -> None:
    owner = Owner("acme", "torch.mul", pair=True)
    g = jitted(owner)
    assert_equal(gradients(g), gradients(product))
    assert owner.ran == []


def test_the_reason_names_the_key(whole: Any) -> None:
    g = tj.jit(product, plugins=[Owner("acme", "torch.mul"), whole, "torch"])
    g(two(False), two(False))
    reasons = [why for record in tj.explain(g).claims for _, why in record.declined]
    assert any(f"its key is {WHOLE}" in why for why in reasons), reasons


@pytest.mark.parametrize("whole_first", [False, True])
def test_the_first_executor_wins(whole_first: bool) -> None:
    whole, other = Owner("whole", WHOLE), Owner("other", WHOLE)
    owners = (whole, other) if whole_first else (other, whole)
    g = jitted(*owners)
    g(two(False), two(False))
    assert owners[0].ran
    assert not owners[1].ran


@pytest.mark.parametrize("whole_first", [False, True])
@pytest.mark.parametrize("key", ["aten.mul.Tensor", OPERATOR])
def test_a_whole_call_is_not_taken_apart_for_another(key: str, whole_first: bool) -> None:
    whole, inside, plain = Owner("whole", WHOLE), Owner("inside", key), Owner("plain", "torch.mul")
    g = jitted(*((whole, plain, inside) if whole_first else (inside, plain, whole)))
    assert_equal(gradients(g), gradients(product))
    kind = "TwoTensor" if key == OPERATOR else "Tensor"
    assert whole.ran == ["run TwoTensor"]
    assert set(inside.ran) == {f"run {kind}"}
    assert not plain.ran


def test_what_a_claim_declines_is_dense() -> None:
    class Picky(Owner):
        def check(self, call: BoundSymbol) -> bool | Decline:
            return Decline("not this one")

    owner = Picky("acme", WHOLE, pair=True)
    g = jitted(owner)
    assert_equal(gradients(g), gradients(product))
    assert not owner.ran
    assert not any(call.on_subclass for call in tj.last_trace(g).calls)


def test_annotations_are_no_operations_of_a_class(whole: Any) -> None:
    """A class that overrides nothing has PyTorch's names, whatever it says of its attributes."""
    g = tj.jit(product, plugins=[whole, "torch"])
    g(Labeled(torch.ones(3)), Labeled(torch.ones(3)))
    assert [call.symbol.qualname for call in tj.last_trace(g).calls] == ["torch.mul", "torch.sin"]


def test_a_class_whose_tensors_were_copied_overrides_nothing(whole: Any) -> None:
    """Copying leaves a member in the class, and in `torch.Tensor`."""
    copy.copy(torch.ones(1))
    copy.deepcopy(two(False))
    copyreg._slotnames(torch.Tensor)  # type: ignore[attr-defined]
    copyreg._slotnames(TwoTensor)  # type: ignore[attr-defined]
    g = tj.jit(product, plugins=[whole, "torch"])
    g(two(False), two(False))
    assert [call.symbol.qualname for call in tj.last_trace(g).calls] == ["torch.mul", "torch.sin"]


def test_one_executor_has_both() -> None:
    owner = Owner("acme", WHOLE, "torch.mul")
    g = tj.jit(lambda x, y: (x * y, y.a * 2.0), plugins=[owner, "torch", "subclass"])
    g(two(False), two(False))
    assert owner.ran == ["run TwoTensor", "run Tensor"]


def test_a_key_of_no_operation_is_refused() -> None:
    with pytest.raises(PluginError, match=r"expp.*Did you mean"):
        tj.jit(product, plugins=[Owner("acme", "TwoTensor.torch.expp"), "torch"])(two(), two())


def test_the_tangent_of_a_sum_does_not_run_the_program_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tangent of a sum is an expanded number; the backward reads its rows."""

    def again(self: Any) -> Any:
        raise AssertionError("the program runs again")

    monkeypatch.setattr(Variants, "again", property(again))
    assert_equal(gradients(jitted()), gradients(product))

    def of_a_matrix(f: Any) -> Any:
        x, w = torch.ones(2, 3), TwoTensor(torch.ones(4, 3), torch.ones(4, 3)).requires_grad_()
        f(x, w).sum().backward()
        return w.grad

    f = torch.nn.functional.linear
    assert_equal(of_a_matrix(tj.jit(f)), of_a_matrix(f))
