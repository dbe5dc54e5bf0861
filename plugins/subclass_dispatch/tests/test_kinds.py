"""Tensor kinds: sessions without one, with one of a third party, with several in one call."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import CannotExpandError, RuleTable, hookimpl
from tj_subclass.kind import WRAPPERS
from tj_suites.subclasses.kinds import Labeled
from tj_torch.extend import TENSOR_KINDS, Expander, TensorKind, TorchDialects, tensor_proxy
from torch.testing._internal.two_tensor import TwoTensor

if TYPE_CHECKING:
    from tj_torch.internal import Run

WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "jit": lambda f, plugins: tj.jit(f, plugins=plugins, strict=False),
    "fx": lambda f, plugins: tj.jit(
        torch.fx.symbolic_trace(f), plugins=plugins, frontend="fx", strict=False
    ),
}


def two(*shape: int) -> Any:
    return TwoTensor(torch.ones(*shape), torch.full(shape, 2.0)).requires_grad_()


def chain(x: Any, y: Any) -> Any:
    return (x * y).sin() + x


def writes(x: Any, y: Any) -> Any:
    z = x * 2
    z[0].mul_(y[0])
    return z.cos()


def ignores(x: Any, y: Any) -> Any:
    return y * 3


def facts(f: Callable[..., Any], x: Any, y: Any) -> Any:
    """Result of ``f``, and gradients of the arguments."""
    out = f(x, y)
    out.sum().backward()
    return [
        None if t is None else (type(t), t.a.tolist(), t.b.tolist())
        for t in (out.detach(), x.grad, y.grad)
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("plugins", [["torch"], ["torch", "autograd"]], ids=len)
@pytest.mark.parametrize("f", [chain, writes, ignores])
def test_without_a_kind_the_program_runs_as_it_is(
    f: Callable[..., Any], plugins: list[str], way: str
) -> None:
    jitted = WAYS[way](f, plugins)
    with pytest.warns(tj.TjWarning, match="TwoTensor is a tensor subclass") as warned:
        found = [facts(jitted, two(3), two(3)) for _ in range(3)]
    assert found == [facts(f, two(3), two(3))] * 3
    assert [str(w.message).count("pip install tj-subclass") for w in warned] == [1]
    assert len(tj.stats(jitted).fallbacks) == 1


def test_without_a_kind_the_captured_graph_is_kept_under_the_backend() -> None:
    torch.compiler.reset()
    compiled = torch.compile(chain, backend="tj", fullgraph=True, options={"plugins": ["torch"]})
    with pytest.warns(tj.TjWarning, match="TwoTensor is a tensor subclass"):
        found = facts(compiled, two(3), two(3))
    assert found == facts(chain, two(3), two(3))


@torch._dynamo.allow_in_graph
def through_a_subclass(x: torch.Tensor) -> torch.Tensor:
    return (Labeled(x * 2, "inside") * 2).held


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (Labeled(x * 2, "made") + 1).held,
        lambda x: through_a_subclass(x.sin()) + 1,
    ],
    ids=["made", "inside a call"],
)
def test_without_a_kind_a_program_that_makes_one_runs_as_it_is(f: Callable[..., Any]) -> None:
    jitted = tj.jit(f, plugins=["torch"], strict=False)
    x = torch.rand(3)
    with pytest.warns(tj.TjWarning, match="Labeled is a tensor subclass") as warned:
        for value in (x, x + 1, x + 2):
            assert torch.equal(jitted(value), f(value))
    assert len(warned) == 1


def test_a_mistake_of_the_plugin_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tj_subclass.expansion.run.alias_facts", None)
    jitted = tj.jit(chain, session=tj.Session())  # expansions are remembered, failed ones, too
    with pytest.warns(tj.TjWarning, match=r"internal error while expanding .*TypeError.*run\.py"):
        assert torch.equal(jitted(two(3), two(3)).b, chain(two(3), two(3)).b)


def test_programs_without_subclasses_warn_of_nothing() -> None:
    jitted = tj.jit(lambda x: x.sin() * 2, plugins=["torch", "autograd"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jitted(torch.ones(3, requires_grad=True)).sum().backward()


class Acme:
    """A third party with a kind of its own for `Labeled`: calls on such tensors stay whole."""

    tj_name = "acme"

    def __init__(self, key: str = "tj_suites.subclasses.kinds.Labeled") -> None:
        self.key = key
        self.asked: list[str] = []

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[Any], ...]:
        def run(run: Run) -> Run:
            self.asked.append(run.fn.__name__)
            raise CannotExpandError("acme runs it")

        table: RuleTable[TensorKind] = RuleTable(TENSOR_KINDS)
        table.set(self.key, dataclasses.replace(WRAPPERS, run=run))
        return (table,)


@pytest.mark.parametrize("key", ["tj_suites.subclasses.kinds.Labeled", "tj_suites.*", "*"])
def test_a_third_party_has_a_kind_of_its_own(key: str) -> None:
    acme = Acme(key)
    plugins = [acme, "torch", *([] if key == "*" else ["subclass"])]
    jitted = tj.jit(lambda x: x.sin() * 2, plugins=plugins)
    x = Labeled(torch.rand(3), "a")
    assert torch.equal(jitted(x).held, (x.sin() * 2).held)
    # What acme declines one by one, tj-subclass tries as one call.
    assert acme.asked == ["sin", "mul", *([] if key == "*" else ["joined"])]
    assert [call.body for call in tj.last_trace(jitted, stage="ACQUIRED").calls] == [None, None]


def test_a_kind_is_for_its_class_alone() -> None:
    acme = Acme()
    jitted = tj.jit(lambda x: x.sin() * 2, plugins=[acme, "torch", "subclass"])
    x = two(3).detach()
    assert torch.equal(jitted(x).b, (x.sin() * 2).b)
    assert acme.asked == []


def test_a_call_on_two_kinds_stays_whole() -> None:
    session = tj.Session([Acme(), "torch", "subclass"])
    jitted = tj.jit(lambda x: x.sin(), session=session)
    jitted(torch.ones(2))
    expander: Expander = TorchDialects.of(session).memo.expander
    values = Labeled(torch.ones(2), "a"), two(2).detach()
    with pytest.raises(CannotExpandError, match="two plugins"):
        expander.expand(torch.add, tuple(map(tensor_proxy, "xy", values)))
