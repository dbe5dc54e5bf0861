"""Numbers of tensors that the program makes from constants: ``torch.arange(2, x.ndim).tolist()``.

To Dynamo these depend on data, and cannot say which dimensions to reduce, as in MONAI's losses.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo.patches import is_nested
from tj_torch.runtime.modes import without_modes
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["read_constants"]

_MOST = 1024
"""Elements of the largest tensor that is computed while Dynamo captures."""

_FUNCTIONS: frozenset[Any] = frozenset({
    *(torch.arange, torch.linspace, torch.zeros, torch.ones, torch.full, torch.tensor),
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.mod, operator.neg),
    *(torch.sum, torch.prod, torch.cumsum, torch.cumprod, torch.add, torch.sub, torch.mul),
})  # fmt: skip
"""Functions without side effects, whose results share no memory with arguments."""

_METHODS = frozenset({"sum", "prod", "cumsum", "cumprod", "add", "sub", "mul", "item"})


def read_constants(stack: ExitStack) -> None:
    """Take ``tolist`` and ``item`` of tensors that are made from constants for constants."""
    from tj_torch.torch_private.dynamo import TensorVariable

    for name in ("tolist", "item"):
        replace(stack, TensorVariable, f"method_{name}", _reading(name))


def _reading(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def reading(original: Callable[..., Any]) -> Callable[..., Any]:
        from tj_torch.torch_private.dynamo import VariableTracker

        def method(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            known = None if args or kwargs or is_nested(tx) else _value(self.as_proxy().node)
            if known is None or (name == "item" and known.numel() != 1):
                return original(self, tx, *args, **kwargs)
            return VariableTracker.build(tx, getattr(known, name)())

        return method

    return reading


def _value(node: torch.fx.Node) -> torch.Tensor | None:
    """The tensor of a node of Dynamo's graph, if it is made from constants and never written."""
    if not _is_known(node):
        return None
    with without_modes(), torch.no_grad():
        found: torch.Tensor = _computed(node)
    example = node.meta["example_value"]
    kinds = [(t.dtype, t.device, t.shape) for t in (found, example)]
    return found if kinds[0] == kinds[1] else None


def _is_known(node: torch.fx.Node) -> bool:
    example = node.meta.get("example_value")
    if not isinstance(example, torch.Tensor) or not isinstance(example.numel(), int):
        return False
    if example.numel() > _MOST or not all(map(_only_reads, (node, *node.users))):
        return False
    return all(map(_is_known, node.all_input_nodes))


def _only_reads(node: torch.fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _METHODS
    return node.op == "call_function" and node.target in _FUNCTIONS and "out" not in node.kwargs


def _computed(node: torch.fx.Node) -> Any:
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), _computed)
    target: Any = node.target
    if node.op == "call_method":
        target = getattr(args[0], target)
        args = args[1:]
    return target(*args, **kwargs)
