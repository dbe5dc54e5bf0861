"""Inductor's regions run operator by operator, so that nothing is compiled by a C++ compiler.

Which regions there are, their names, sizes, guards, variants, layouts and what is kept for a
backward are as in any other run; only the kernels are PyTorch's. Thousands of programs run in the
time that a C++ compiler takes for some.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["install", "interpreted"]


def install() -> None:
    """Let PyTorch run what Inductor would compile, in this process."""
    module = importlib.import_module("torch._inductor.compile_fx")
    vars(module)["compile_fx_inner"] = interpreted


def interpreted(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """A stand-in for the result of ``compile_fx_inner``: a function of a list that it empties."""
    return _Interpreted(_running(graph))


@dataclass
class _Interpreted:
    """A stand-in for a compiled graph."""

    current_callable: Callable[[list[Any]], list[Any]]
    _boxed_call: bool = True

    def __call__(self, box: list[Any]) -> list[Any]:
        """Run the graph."""
        return self.current_callable(box)


def _running(graph: torch.fx.GraphModule) -> Callable[[list[Any]], list[Any]]:
    graph.recompile()
    output = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    strides = [_strides(node) for node in output.args[0]]

    def run(box: list[Any]) -> list[Any]:
        # Kernels write memory, and no versions: `detach` would share those of an argument.
        args = [x.data if isinstance(x, torch.Tensor) else x for x in box]
        box.clear()
        with torch.no_grad():
            found = graph.forward(*args)  # not its call: that runs hooks on all modules
            # `_to_copy` counts a write to what it returns.
            return [_laid(value, wanted).data for value, wanted in zip(found, strides, strict=True)]

    return run


def _strides(node: Any) -> tuple[int, ...] | None:
    """The strides that are expected of an output; None if they are symbols, or it has none."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    fixed = all(isinstance(n, int) for n in value.stride())
    return tuple(value.stride()) if fixed else None


def _laid(value: Any, strides: tuple[int, ...] | None) -> Any:
    """A value in the layout that is expected of it."""
    if strides is None or value.stride() == strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)
