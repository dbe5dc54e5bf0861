"""Dropout: gradients and costs, see `tj_suites.gradients.hot`."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_suites.gradients.hot import (
    arguments,
    case,
    checks_of,
    compiled,
    saved_bytes,
    step,
)
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(16)

CASES = {
    "dropout": case(lambda x: F.dropout(x, 0.3), (6, 8), more=True),
    "dropout, laid out by columns": case(lambda x: F.dropout(x.t() * 1, 0.3), (6, 8), more=True),
    "dropout, torch.dropout": case(lambda x: torch.dropout(x, 0.7, True), (6, 8), more=True),
    "dropout, none": case(lambda x: F.dropout(x, 0.0) * 2, (6, 8)),
    "dropout, all": case(lambda x: F.dropout(x, 1.0), (6, 8), more=True),
    "dropout, evaluation": case(lambda x: F.dropout(x, 0.5, training=False) * 2, (6, 8)),
    "dropout, in place": case(lambda x: F.dropout(x * 2, 0.5, inplace=True), (6, 8), more=True),
    "dropout, empty": case(lambda x: F.dropout(x, 0.5) * 2, (0, 8)),
}

(
    test_gradients_are_those_of_differences,
    test_results_and_gradients_are_eagers_to_the_bit,
    test_no_more_is_saved_or_run_than_eager_does,
) = checks_of(CASES, without={"dropout, empty"})


def test_less_is_saved() -> None:
    """A mask of one byte per element is saved."""
    c, args = CASES["dropout"], arguments(CASES["dropout"], torch.float32)
    run = compiled(c)
    step(run, args)
    assert 0 < saved_bytes(run, args) <= 0.25 * saved_bytes(c.fn, args)


def whose(run: Any) -> set[tuple[str, str]]:
    return {(change.plugin, change.rule) for change in tj.explain(run).gradients}


def test_dropouts_own_rule_gives_way_to_a_plugins() -> None:
    from tj_autograd.joint.rules import GradRule
    from tj_core.extend import RuleTable, hookimpl

    class Mine:
        TJ_PLUGIN_API = 1

        @staticmethod
        @hookimpl
        def tj_rule_tables(options: Any) -> Any:
            table: RuleTable[Any] = RuleTable("grad")
            table.set("torch.nn.functional.dropout", GradRule(forward, lambda s, g: (g * s[0],)))
            return (table,)

    def forward(x: torch.Tensor, p: float = 0.5) -> Any:
        factors = torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)
        return x * factors, (factors,)

    c, args = CASES["dropout"], arguments(CASES["dropout"], torch.float32)
    key = "torch.nn.functional.dropout"
    for plugins, owner in (
        ([Mine, "torch", "autograd"], "Mine"),
        (["torch", "autograd"], "autograd"),
    ):
        run = tj.jit(lambda *args: c.fn(*args), session=tj.Session(plugins))
        assert all(map(torch.equal, step(run, args), step(c.fn, args)))
        assert whose(run) == {(owner, key)}


def test_equal_layers_apply_a_rule_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tj_autograd.joint import lookup

    applied = []
    real = lookup.apply_rule
    monkeypatch.setattr(lookup, "apply_rule", lambda *a: applied.append(a) or real(*a))

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = F.dropout(x * 2, 0.5)
        return F.dropout(x, 0.1)

    args = (torch.randn(3, 4, requires_grad=True),)
    assert all(map(torch.equal, step(tj.jit(f), args), step(f, args)))
    assert len(applied) == 2
