"""Rules for a function of `torch.nn.functional` hold where it is called with ``inplace=True``."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import tj_core as tj
import torch
import torchgen
from tj_autograd.joint.rules import GradRule
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.rules import RuleTable
from tj_core.host.hookspecs import hookimpl
from tj_torch.functionalize.inplace_argument import OWN_GRADIENT, SAVES_ARGUMENT
from torch.nn import functional as F

FUNCTIONS = {
    name: function
    for name, function in vars(F).items()
    if inspect.isfunction(function)
    and not name.startswith("_")
    and "inplace" in inspect.signature(function).parameters
}
SHAPES = {"dropout1d": (2, 3, 4), "dropout3d": (2, 3, 2, 2, 2), "feature_alpha_dropout": (2, 3, 2)}
ARGUMENTS = {"threshold": (0.1, 0.5)}
CALLED = {"threshold": "torch.threshold"}
"""Functions as they are captured; ``F.threshold`` is Python that calls one."""

ANOTHER = {"celu", "elu", "leaky_relu", "rrelu", "selu"}
"""Functions whose in-place form has a gradient of its own."""

DRAWS = {name for name in FUNCTIONS if "dropout" in name}


class Rules:
    """A plugin with a claim for one function, which counts its calls, and maybe a gradient rule."""

    TJ_PLUGIN_API = 1
    tj_name = "rules"

    def __init__(self, name: str, grad: GradRule | None = None) -> None:
        self.key = CALLED.get(name, f"torch.nn.functional.{name}")
        self.function, self.grad, self.ran = getattr(F, name), grad, 0

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.ran += 1
        return self.function(*args, **kwargs)

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set(self.key, Claim(self.run))
        return (Executor("rules", claims),)

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[Any], ...]:
        table: RuleTable[Any] = RuleTable("grad")
        if self.grad is not None:
            table.set(self.key, self.grad)
        return (table,)


def compared(name: str, rules: Rules, gradients: bool) -> Any:
    """The jitted program that calls ``name`` in place, after a comparison with eager to the bit."""
    function, given = FUNCTIONS[name], ARGUMENTS.get(name, ())
    training = {"training": True} if "training" in inspect.signature(function).parameters else {}

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x * 1.5
        again = function(h, *given, inplace=True, **training)
        return h + 1, again

    torch.manual_seed(1)
    x = torch.randn(SHAPES.get(name, (2, 3, 2, 2)), requires_grad=gradients)
    jitted = tj.jit(f, session=tj.Session([rules, "torch", "autograd"]))
    found = []
    for program in (f, jitted):
        torch.manual_seed(0)
        sum_1, again = program(x)
        grad = torch.autograd.grad((sum_1 * again).sum(), x) if gradients else ()
        found.append((sum_1, again, *grad, again._version))
    assert all(a.equal(b) for a, b in zip(found[0][:-1], found[1][:-1], strict=True))
    assert found[0][-1] == found[1][-1]
    return jitted


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_claim_for_the_function_takes_the_call_that_writes(name: str) -> None:
    rules = Rules(name)
    jitted = compared(name, rules, gradients=False)
    assert rules.ran == 1, tj.explain(jitted)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_claim_takes_it_where_gradients_are_taken_or_says_why_not(name: str) -> None:
    rules = Rules(name)
    jitted = compared(name, rules, gradients=True)
    if name in ANOTHER - {"rrelu"}:
        assert f"claims {rules.key}, and this call writes" in str(tj.explain(jitted))
    else:
        assert rules.ran == (0 if name in DRAWS | ANOTHER else 1), tj.explain(jitted)


def test_a_gradient_rule_for_the_function_is_used() -> None:
    def forward(x: torch.Tensor, inplace: bool = False) -> Any:
        return torch.ops.aten.silu.default(x), (x,)

    rules = Rules("silu", GradRule(forward, lambda saved, grad: (grad * saved[0],)))
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    jitted = tj.jit(
        lambda x: F.silu(x * 1, inplace=True), session=tj.Session([rules, "torch", "autograd"])
    )
    (grad,) = torch.autograd.grad(jitted(x).sum(), x)
    assert grad.equal(x.detach()), "the rule's gradient, which is not PyTorch's"


def test_the_tables_are_those_of_pytorch() -> None:
    """Formulas of ``derivatives.yaml``: in-place ones of their own, and those of the argument."""
    path = Path(torchgen.__file__).parent / "packaged/autograd/derivatives.yaml"
    text = path.read_text()
    names = OWN_GRADIENT | SAVES_ARGUMENT | {"relu"}
    found = re.findall(
        r"^- name: (\w+)\(.*\n(?:  [^s#].*\n|  #.*\n)*  self: (.*)", text, re.MULTILINE
    )
    formulas = {name: formula for name, formula in found if name.removesuffix("_") in names}
    own = {n for n in names if formulas.get(f"{n}_", formulas[n]) != formulas[n]}
    assert own == OWN_GRADIENT
    reading = {n for n in names - own if re.search(r"\bself\b", formulas[n])}
    assert reading == SAVES_ARGUMENT
