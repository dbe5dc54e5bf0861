"""Programs of ``DTensor``: dense, with traced gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import tj_core as tj
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

from tj_conformance.oracle.case import evaluate
from tj_conformance.subclasses.distributed import PROGRAMS, group


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_gradient_is_left_to_pytorchs_autograd(name: str, tmp_path: Path) -> None:
    made = []

    def jit(fn, **options):
        made.append(tj.jit(fn, **options))
        return made[0]

    with group(0, 1, str(tmp_path / "store")):
        verdict = evaluate(PROGRAMS[name], jit)
    assert not verdict.differences and not verdict.fallbacks, str(verdict)
    assert not tj.explain(made[0]).declined
    assert not any(c.on_subclass for c in tj.last_trace(made[0]).calls)
