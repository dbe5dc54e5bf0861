"""NumPy in captured programs: only functions that move or convert data are compiled.

Dynamo runs NumPy calls with PyTorch's kernels, which differ in the last bit and do not warn where
NumPy does, and treats a NumPy scalar as a tensor without dimensions.
"""

from __future__ import annotations

import types
from collections.abc import Mapping

import torch
from tj_core.extend import CaptureError

from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.dynamo.numpy_numbers import MOVES
from tj_torch.capture.sources import node_source

__all__ = ["check_arrays"]


def check_arrays(graph: torch.fx.GraphModule, sources: Mapping[int, str]) -> None:
    """Check that PyTorch computes all operations on arrays in ``graph`` as NumPy, to the last bit.

    ``sources`` are the expressions that inputs are read from, by index.

    :raises CaptureError: naming the first call that may differ.
    """
    nodes = list(graph.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    arrays = {node for i, node in enumerate(inputs) if dynamo.is_array(sources.get(i, ""))}
    for node in arrays:
        for user in node.users:
            if not _is_array(node) and not _same_of_number(user, node):
                raise CaptureError(_SCALAR, source=node_source(user))
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
_SCALAR = "a scalar of NumPy is a number to PyTorch, and a tensor in a captured program"


def _kept(node: torch.fx.Node, name: str) -> bool:
    """Test for a call that only moves data of an array."""
    return _is_array(node) and name in MOVES


def _is_array(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _takes_a_number(user: torch.fx.Node) -> bool:
    """Test for a call of PyTorch that takes a NumPy scalar as a number.

    Functions in Python may check the type. Dynamo decomposes ``full`` into ``fill_`` of an empty
    tensor, whose data type depends on the scalar's.
    """
    name = str(getattr(user.target, "__name__", user.target))
    if name in ("fill_", "new_tensor"):
        return False
    if user.op == "call_function":
        of_operator = getattr(user.target, "__module__", None) == "_operator"
        in_c = isinstance(user.target, types.BuiltinFunctionType)
        return in_c and (of_operator or hasattr(torch.Tensor, name))
    return user.op == "call_method"


def _same_of_number(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Test if ``user`` gives the same result for ``node``, a 0-d tensor, and for its number.

    A 0-d tensor takes part in type promotion if the others have a lower category. In low precision
    the tensor would be rounded first.
    """
    scalar = node.meta["example_value"]
    if dynamo.numpy_name(user) is not None:
        return True  # subject to NumPy's rules
    inside = _inside(user, scalar)
    if inside:
        return all(_same_of_number(inner, p) for p in inside for inner in p.users)
    if not _takes_a_number(user) or user.args[:1] == (node,) or _is_power(user):
        return False
    others = [n.meta.get("example_value") for n in user.all_input_nodes if n is not node]
    tensors = [other for other in others if isinstance(other, torch.Tensor)]
    if scalar.dtype is torch.int64:
        return True
    number = torch.zeros((), dtype=scalar.dtype).item()
    return bool(tensors) and all(
        t.dtype not in _LOW and torch.result_type(t, scalar) is torch.result_type(t, number)
        for t in tensors
    )


def _is_power(user: torch.fx.Node) -> bool:
    """Test for a power: one by the number 0.5 is a square root, and otherwise rounded."""
    return "pow" in str(getattr(user.target, "__name__", user.target))


def _inside(user: torch.fx.Node, value: torch.Tensor) -> list[torch.fx.Node]:
    """Placeholders for ``value`` in the operand graphs of ``user``, a higher-order operation."""
    owner = user.graph.owning_module
    held = (n for n in user.all_input_nodes if n.op == "get_attr")
    graphs = (getattr(owner, str(n.target), None) for n in held)
    return [
        node
        for graph in graphs
        if isinstance(graph, torch.fx.GraphModule)
        for node in graph.graph.find_nodes(op="placeholder")
        if node.meta.get("example_value") is value
    ]


_LOW = frozenset({torch.float16, torch.bfloat16})
