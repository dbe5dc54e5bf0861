"""NumPy in captured programs: only what moves and converts data is compiled.

Dynamo computes NumPy calls by PyTorch, whose kernels round the last bit otherwise and do not warn
where NumPy does, and in whose terms a scalar of NumPy is an array without dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tj_core.extend import CaptureError

from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.sources import node_source

__all__ = ["check_arrays"]

_MOVES = frozenset(
    [
        "T",
        "array",
        "asarray",
        "astype",
        "broadcast_to",
        "concatenate",
        "copy",
        "expand_dims",
        "flatten",
        "flip",
        "full",
        "full_like",
        "getitem",
        "hstack",
        "moveaxis",
        "ones",
        "ones_like",
        "ravel",
        "repeat",
        "reshape",
        "roll",
        "squeeze",
        "stack",
        "swapaxes",
        "tile",
        "transpose",
        "vstack",
        "zeros",
        "zeros_like",
    ]
)
"""Functions, methods, operators and attributes that compute nothing."""

_EXACT_OF_NUMBERS = frozenset({"sqrt", "float32", "float64", "int32", "int64"})
"""Of these functions of numbers, results are rounded correctly, or not at all."""


def check_arrays(graph: torch.fx.GraphModule, sources: Mapping[int, str]) -> None:
    """See that ``graph`` does with arrays only what PyTorch does to the last bit as NumPy does.

    ``sources`` are the expressions that its inputs are read from.

    :raises CaptureError: naming the first call that is computed otherwise.
    """
    nodes = list(graph.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    arrays = {node for i, node in enumerate(inputs) if dynamo.is_array(sources.get(i, ""))}
    for node in nodes:
        name = dynamo.numpy_name(node)
        if name is not None:
            if not _kept(node, name) or not arrays.issuperset(node.all_input_nodes):
                raise CaptureError(_COMPUTED.format(name), source=node_source(node))
            arrays.add(node)
        elif node.target is torch.tensor and not arrays.isdisjoint(node.all_input_nodes):
            raise CaptureError(_COPIED, source=node_source(node))


_COMPUTED = (
    "NumPy's {} of these values is not, to the last bit and type, what PyTorch would compute for it"
)
_COPIED = "torch.tensor of an array does not do what it does of a tensor"


def _kept(node: torch.fx.Node, name: str) -> bool:
    """Whether the result is the same, and used as the same: a scalar of NumPy is no tensor."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return False
    if value.dim():
        return name in _MOVES
    return name in _EXACT_OF_NUMBERS and not node.all_input_nodes and _only_a_right_operand(node)


def _only_a_right_operand(node: torch.fx.Node) -> bool:
    """Whether ``node`` only goes into calls of PyTorch, and as what a number could be."""
    return all(
        user.op != "output"
        and dynamo.numpy_name(user) is None
        and len(user.args) == 2
        and user.args[0] is not node
        for user in node.users
    )
