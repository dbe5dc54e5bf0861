"""Transforms of ``torch.func`` with `tj.jit` in them or around them, as the tests get them."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core
import torch
from tj_suites.upstream.kinds import Mode
from tj_suites.upstream.transforms import changed


def cubes(x: torch.Tensor) -> torch.Tensor:
    """A scalar of a tensor."""
    return (x**3).sum()


X = torch.tensor([1.0, 2.0, -3.0])


@pytest.fixture
def jitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arguments of `tj.jit`, which leaves them unchanged here."""
    functions: list[Any] = []

    def jit(function: Any) -> Any:
        functions.append(function)
        return lambda *args: function(*args)

    monkeypatch.setattr(tj_core, "jit", jit)
    return functions


def test_inside(jitted: list[Any]) -> None:
    func = changed(Mode.INSIDE)
    assert torch.equal(func["grad"](cubes)(X), 3 * X**2)
    assert jitted == [cubes]
    # What a transform returned is not jitted for the next one.
    assert torch.equal(func["vmap"](func["grad"](cubes))(X), 3 * X**2)
    assert jitted == [cubes, cubes]
    assert torch.equal(func["vjp"](cubes, X)[0], cubes(X))
    assert jitted == [cubes, cubes, cubes]


def test_outside(jitted: list[Any]) -> None:
    func = changed(Mode.OUTSIDE)
    assert torch.equal(func["grad"](cubes)(X), 3 * X**2)
    assert len(jitted) == 1
    assert cubes not in jitted
    # The jitted gradient is taken apart again, and all is jitted as one.
    assert torch.equal(func["vmap"](func["grad"](cubes))(X), 3 * X**2)
    assert len(jitted) == 3
    assert torch.equal(func["jvp"](cubes, (X,), (torch.ones(3),))[1], (3 * X**2).sum())
    assert len(jitted) == 4


def test_a_transform_of_what_tj_jits_runs_the_function_itself() -> None:
    grad = changed(Mode.INSIDE)["grad"]
    with pytest.warns(tj_core.TjWarning, match="called under a torch.func transform"):
        assert torch.equal(grad(cubes)(X), 3 * X**2)


def test_tj_jits_what_a_transform_returns() -> None:
    assert torch.allclose(changed(Mode.OUTSIDE)["grad"](cubes)(X), 3 * X**2)


@pytest.mark.parametrize("mode", [Mode.INSIDE, Mode.OUTSIDE])
def test_a_graph_that_a_test_compiles_itself_has_the_transform(mode: Mode) -> None:
    grad = changed(mode)["grad"]
    compiled = torch.compile(lambda x: grad(cubes)(x), backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), 3 * X**2)
