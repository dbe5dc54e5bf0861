"""Transforms of the joint trace that give other names to the values of the forward."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Stage, TraceEditor, Transform


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 3, requires_grad=True), torch.randn(3, 5, requires_grad=True)


def _renamed(trace: Any, context: Any) -> Any:
    """``trace`` with other names for all values but its inputs."""
    editor = TraceEditor(trace, context.tags)
    for call in map(editor.moved, trace.calls):
        again = editor.renamed(call)
        pairs = zip(call.defined(), again.defined(), strict=True)
        editor.values.update((old.name, new) for old, new in pairs)
        editor.append(again)
    return editor.done()


def test_a_transform_of_the_joint_trace_may_rename_what_is_returned() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.tanh(x @ w).sin(), x

    renaming = Transform("renaming", _renamed, Stage.JOINT)
    mine, theirs = inputs(), inputs()
    got, expected = tj.jit(f, transforms=[renaming])(*mine), f(*theirs)
    assert torch.equal(got[0], expected[0])
    assert got[1] is mine[0]
    gradients = torch.autograd.grad(got[0].sum(), mine)
    assert all(map(torch.equal, gradients, torch.autograd.grad(expected[0].sum(), theirs)))


def test_a_value_between_two_nodes_keeps_its_name() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        h = torch.tanh(x @ w)
        return h, h.sin()

    with pytest.raises(tj.TjError, match=r"no call defines 'h' any more(.|\n)*keeps the names"):
        tj.jit(f, transforms=[Transform("renaming", _renamed, Stage.JOINT)])(*inputs())
