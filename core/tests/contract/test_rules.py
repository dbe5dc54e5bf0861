"""Rules for calls on tensor subclasses."""

from __future__ import annotations

import pytest
from tj_core.extend import (
    BoundSymbol,
    Claim,
    Executor,
    RuleTable,
    SubclassInfo,
    Symbol,
    TensorProxy,
)

PLAIN = TensorProxy("x", (2,), (1,))
PAIRED = PLAIN.replace(name="y", subclass=SubclassInfo("lib.kinds.Paired", (("a", PLAIN),)))
OTHER = PLAIN.replace(name="z", subclass=SubclassInfo("lib.kinds.Other", (("a", PLAIN),)))


def call(*args: TensorProxy) -> BoundSymbol:
    return BoundSymbol(Symbol("num", "mul"), args, outputs=args[-1].replace(name="out"))


def table(*keys: str) -> RuleTable[str]:
    rules: RuleTable[str] = RuleTable("meaning")
    for key in keys:
        rules.set(key, key)
    return rules


def found(rules: RuleTable[str], *args: TensorProxy) -> str | None:
    rule = rules.of(call(*args))
    return rule.value if rule else None


def test_a_plain_rule_is_for_plain_tensors() -> None:
    rules = table("num.mul", "num.*")
    assert found(rules, PLAIN, PLAIN) == "num.mul"
    assert found(rules, PAIRED, PLAIN) is None


def test_a_rule_for_a_subclass_is_for_it_alone() -> None:
    rules = table("Paired.num.mul", "*")
    assert found(rules, PLAIN, PAIRED) == "Paired.num.mul"
    assert found(rules, PLAIN, PLAIN) == found(rules, OTHER) == "*"


def test_of_two_subclasses_the_first_with_a_rule_counts() -> None:
    assert found(table("Other.num.mul", "Paired.num.mul"), PAIRED, OTHER) == "Paired.num.mul"
    assert found(table("Other.num.mul"), PAIRED, OTHER) == "Other.num.mul"


@pytest.mark.parametrize("fallback", [False, True])
def test_only_a_fallback_runs_subclasses_by_a_plain_claim(fallback: bool) -> None:
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("num.mul", Claim(lambda *args: args[0]))
    executor = Executor("e", claims, fallback=fallback)
    assert (executor.rule(call(PAIRED, PLAIN)) is not None) == fallback
    assert executor.claim(call(PAIRED, PLAIN)) is None


def test_the_executors_call_has_the_class_in_its_name() -> None:
    claims: RuleTable[Claim] = RuleTable("claim")
    for key in ("num.mul", "Paired.num.mul"):
        claims.set(key, Claim(lambda *args: args[0]))
    executor = Executor("e", claims)
    names = []
    for made in (call(PLAIN, PLAIN), call(PAIRED, PLAIN)):
        rule = executor.rule(made)
        assert rule is not None
        names.append(executor.symbol(made, rule).qualname)
    assert names == ["e.num.mul", "e.Paired.num.mul"]
