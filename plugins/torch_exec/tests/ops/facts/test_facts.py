"""Facts of operations from rule tables of plugins."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import RuleTable, hookimpl, leaves
from tj_torch.extend import Wiring
from torch import fx

X = torch.arange(1.0, 5.0)


class Says:
    """Plugin with one fact of one operation."""

    tj_name = "says"

    def __init__(self, table: str, key: str, value: Any) -> None:
        self.said = table, key, value

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[Any], ...]:
        name, key, value = self.said
        table: RuleTable[Any] = RuleTable(name)
        table.set(key, value)
        return (table,)


def jitted(f: Callable[..., Any], *said: Any, **options: Any) -> Any:
    plugins = [Says(*said), "torch"] if said else ["torch"]
    return tj.jit(f, plugins=plugins, **options)


def calls(g: Any, *args: Any) -> dict[str, Any]:
    """Calls of ``g``'s program, by name."""
    g(*args)
    return {call.symbol.qualname: call for call in tj.last_trace(g, stage="ACQUIRED").calls}


DENIED = ("denied", "torch.sin", "sin lies about what it is given")


@pytest.mark.parametrize("said", [(), DENIED])
def test_what_must_not_run_on_fake_tensors_is_not_expanded(said: tuple[str, ...]) -> None:
    found = calls(jitted(lambda x: torch.sin(x).cos(), *said), X)
    assert [name for name, call in found.items() if call.body is None] == ["torch.sin"] * bool(said)


UNHELD = ("unheld", "torch.sin", "leaves something behind")


@pytest.mark.parametrize("said", [(), UNHELD])
def test_what_no_trace_can_hold_runs_as_captured(said: tuple[str, ...]) -> None:
    g = jitted(lambda x: torch.sin(x), *said)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(g(X), X.sin())
    texts = [str(w.message) for w in caught]
    assert any("torch.sin leaves something behind" in text for text in texts) is bool(said), texts


@torch.library.custom_op("tj_facts::mark", mutates_args=())
def mark() -> None:
    """Do nothing, so that later calls are unaffected."""


mark.register_fake(lambda: None)
STATELESS = ("stateless", "torch.ops.tj_facts.mark.default", True)


@pytest.mark.parametrize("said", [(), STATELESS])
def test_after_a_stateless_call_others_mean_what_they_meant(said: tuple[str, ...]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.ops.tj_facts.mark.default()
        return x.sin()

    found = calls(jitted(f, *said), X)
    assert (found["torch.sin"].body is not None) is bool(said), list(found)


LEVELS = ("levels", "torch.ops.tj_facts.mark.default", True)


@pytest.mark.parametrize("said", [(), LEVELS])
def test_what_ends_with_a_level_is_forgotten_after_it(said: tuple[str, ...]) -> None:
    def inner(t: torch.Tensor) -> torch.Tensor:
        torch.ops.tj_facts.mark.default()
        return t.sin().sum()

    found = calls(jitted(lambda x: torch.func.grad(inner)(x) + torch.cos(x), *said), X)
    assert (found["torch.cos"].body is not None) is bool(said), list(found)


MAY_RAISE = ("may_raise", "torch.sin", lambda call: call.args[0].shape == (4,))


@pytest.mark.parametrize("said", [(), MAY_RAISE])
def test_what_real_tensors_may_refuse_stays_where_it_is(said: tuple[Any, ...]) -> None:
    g = jitted(lambda x: torch.sin(x).cos(), *said)
    assert [call.body is None for call in calls(g, X).values()] == [bool(said), False]
    assert [call.body is None for call in calls(g, X[:3]).values()] == [False, False]


COND = "torch.ops.higher_order.cond"
SAID = Wiring(("yes", "no"), lambda args, n: list(leaves(args[3:])), ("yes", "no"))


@pytest.mark.parametrize("said", [(), ("wiring", COND, SAID)])
def test_operand_graphs_are_called_as_said(said: tuple[Any, ...]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))

    g = jitted(f, *said)
    assert torch.equal(g(X), X.sin())
    assert torch.equal(g(-X), (-X).cos())
    names = [region.name for region in calls(g, X)[COND].subprograms]
    assert names == (["yes", "no"] if said else ["true_fn", "false_fn"])


@pytest.mark.parametrize("said", [(), ("fx", "torch.Tensor.is_leaf", "constant")])
def test_fx_graphs_may_hold_what_guards_see(said: tuple[str, ...]) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_method("sin", (x,)), graph.call_function(getattr, (x, "is_leaf"))))
    g = jitted(fx.GraphModule(torch.nn.Module(), graph), *said, frontend="fx")
    y, is_leaf = g(X)
    assert is_leaf is True
    assert torch.equal(y, X.sin())
    assert ("capture" in tj.stats(g).seconds) is not bool(said), "Dynamo captures what fx refuses"
