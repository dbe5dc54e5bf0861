"""A failing pass of tj: the program runs without tj, and one warning names the pass and the error.

In strict mode, which tests use by default, it is an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.rules import RuleTable
from tj_core.errors import PluginError
from tj_core.passes.dce import dce

pytestmark = pytest.mark.sampled(16)

Program = Callable[..., torch.Tensor]


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x @ w
    return (h.sin() * h).sum()


def jitted(strict: bool) -> Program:
    return tj.jit(program, strict=strict)


def below_the_hook(strict: bool) -> Program:
    return tj.jit(program, frontend="dynamo_hook", strict=strict)


def backend(strict: bool) -> Program:
    torch.compiler.reset()
    return torch.compile(program, backend="tj", options={"strict": strict})


def graph(strict: bool) -> Program:
    return tj.jit(torch.fx.symbolic_trace(program), frontend="fx", strict=strict)


WAYS = [jitted, below_the_hook, backend, graph]

PASSES = {
    "acquire": ["tj_torch.ops.service.TorchDialects.expand"],
    "functionalize": ["tj_torch.functionalize.transform.functionalize"],
    "joint": ["tj_autograd.transform.joint"],
    "split": ["tj_autograd.run.assembly.split"],
    "dce": ["tj_core.compile.pipeline.dce"],
    "cse": ["tj_core.compile.pipeline.cse"],
    "claim": ["tj_core.compile.claims.claim"],
    "codegen": ["tj_core.compile.claims.generate"],
    "guards": ["tj_torch.dispatch.dynamo.guard_members", "tj_torch.dispatch.fx.guard_members"],
}


class Planted(Exception):
    """An error that a pass raises in these tests."""


def planted(*args: Any, **kwargs: Any) -> Any:
    raise Planted("on purpose")


def outcome(run: Program, *, create_graph: bool = False) -> tuple[torch.Tensor, ...]:
    """Value and gradients."""
    torch.manual_seed(0)
    x, w = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    y = run(x, w)
    return y.detach(), *torch.autograd.grad(y, (x, w), create_graph=create_graph)


def warnings_of(run: Program) -> list[str]:
    """The warnings of tj in two calls, whose outcomes are eager's."""
    expected = outcome(program)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.testing.assert_close(outcome(run), expected, rtol=0, atol=0)
    return [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PASSES)
def test_the_program_runs_and_one_warning_says_why(
    name: str, way: Callable[[bool], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "guards" and way in (below_the_hook, backend):
        return  # they are Dynamo's
    for target in PASSES[name]:
        monkeypatch.setattr(target, planted)
    found = warnings_of(way(False))
    assert len(found) == 1
    assert f"the pass {name!r} failed: Planted: on purpose" in found[0]
    with pytest.raises(Exception, match="on purpose"):  # Dynamo has its own for a backend's
        outcome(way(True))


@pytest.mark.parametrize("way", [jitted, below_the_hook, backend])
def test_the_warning_names_the_users_line(
    way: Callable[[bool], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tj_torch.ops.service.TorchDialects.expand", planted)
    (text,) = warnings_of(way(False))
    line = program.__code__.co_firstlineno + 1
    assert f"{__file__}:{line} in program: h = x @ w" in text


# --------------------------------------------------------------------------- compiled late


@pytest.mark.parametrize("way", WAYS)
def test_a_backward_that_is_not_compiled_as_usual_runs_all_the_same(
    way: Callable[[bool], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_late(trace: Any) -> Any:
        return planted() if trace.name == "backward" else dce(trace)

    monkeypatch.setattr("tj_core.compile.pipeline.dce", fails_late)
    (text,) = warnings_of(way(False))
    assert "the pass 'dce' failed: Planted: on purpose" in text
    with pytest.raises(Planted):
        outcome(way(True))


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_of_a_gradient_that_cannot_be_compiled_is_right(
    way: Callable[[bool], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = way(False)
    outcome(run)
    monkeypatch.setattr("tj_core.compile.pipeline.dce", planted)
    expected = outcome(program, create_graph=True)
    with pytest.warns(tj.TjWarning, match="the pass 'dce' failed"):
        got = outcome(run, create_graph=True)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert all(g.requires_grad for g in got[1:])


# --------------------------------------------------------------------------- who answers for it


def executor(check: Callable[..., Any]) -> Executor:
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("torch.sin", Claim(torch.sin, check))
    claims.set("aten.sin.default", Claim(torch.sin, check))
    return Executor("theirs", claims)


@pytest.mark.parametrize("strict", [False, True])
def test_a_plugins_broken_check_is_the_plugins_error(strict: bool) -> None:
    run = tj.jit(program, executors=[executor(lambda call: call.nonsense), "..."], strict=strict)
    with pytest.raises(PluginError, match=r"executor 'theirs' failed in its check of .*sin"):
        outcome(run)
