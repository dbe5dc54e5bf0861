"""Comparison of gradients of programs with functions inside."""

from __future__ import annotations

from typing import Any

import tj_core as tj
import torch
from tj_conformance.gradients.regions import Program, results
from tj_conformance.oracle.versions import left_to_this_version


def assert_equal(mine: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) == (b is None)
        assert a is None or (torch.equal(a, b) and a.requires_grad == b.requires_grad)


def check_gradients(f: Program) -> None:
    """Gradients are eager's, for both signs of the arguments, and their calls are in the trace."""
    jitted = tj.jit(f)
    for size in (1.0, -1.0):  # another branch
        assert_equal(results(jitted, size), results(f, size))
    if left_to_this_version(tj.stats(jitted).fallbacks):
        return
    assert tj.explain(jitted).declined == ()
    assert "JOINT" in {t.stage.name for t in tj.last_traces(jitted)}
    assert tj.last_trace(jitted, "backward").calls
