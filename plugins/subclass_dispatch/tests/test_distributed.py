"""Programs of ``DTensor``: dense, with traced gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

from tj_conformance.oracle.case import evaluate
from tj_conformance.oracle.compare import assert_equal
from tj_suites.subclasses.distributed import PROGRAMS, given, group
from torch.distributed.tensor import Replicate, Shard

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_gradient_is_left_to_pytorchs_autograd(name: str, tmp_path: Path) -> None:
    made = []

    def jit(fn, **options):
        made.append(tj.jit(fn, **options))
        return made[0]

    with group(0, 1, str(tmp_path / "store")):
        verdict = evaluate(PROGRAMS[name], jit)
    assert not verdict.differences, str(verdict)
    assert not verdict.fallbacks, str(verdict)
    assert not tj.explain(made[0]).declined
    assert not any(c.on_subclass for c in tj.last_trace(made[0]).calls)


@pytest.mark.parametrize("placement", [Replicate(), Shard(0)], ids=["replicated", "sharded"])
def test_gradients_of_gradients_of_several_results_are_eagers(
    placement: Any, tmp_path: Path
) -> None:
    def f(x: Any) -> Any:
        z = x * 2
        return z * x, z.sum()

    def second(f: Any) -> Any:
        torch.manual_seed(0)
        x = given((placement,), 4, 3, grad=True)()
        total = sum(r.sum() for r in f(x))
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        first.sin().sum().backward()
        return first.to_local(), x.grad.to_local()

    with group(0, 1, str(tmp_path / "store")):
        assert_equal(second(tj.jit(f)), second(f))
