"""The reason of a program, in the context of a transform after CLAIMED."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import PassContext, Stage, Trace, Transform


def told(fn: Any, calls: list[tuple[Any, ...]]) -> list[str]:
    """The reasons of the programs that ``calls`` of ``fn`` make."""
    found: list[str] = []

    def note(trace: Trace, context: PassContext) -> Trace:
        found.append(context.reason)
        return trace

    jitted = tj.jit(fn, plugins=["torch"], transforms=[Transform("note", note, Stage.CLAIMED)])
    for args in calls:
        jitted(*args)
    return found


def test_a_program_compiled_again() -> None:
    def f(x: torch.Tensor, flag: bool) -> torch.Tensor:
        return x.sin() if flag else x.cos()

    x = torch.ones(2)
    assert told(f, [(x, True), (x, True), (x, False)]) == ["", "flag was True, is False"]


def test_the_parts_between_graph_breaks() -> None:
    def f(x: torch.Tensor, flag: bool) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y + 1 if flag else y - 1

    x = torch.ones(2)
    with pytest.warns(tj.TjWarning, match="graph break"):
        reasons = told(f, [(x, True), (x, False)])
    assert reasons == ["", "", "flag was True, is False"]
