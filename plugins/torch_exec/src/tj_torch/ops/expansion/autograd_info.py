"""Autograd in expansions: non-leaf tensors, gradients, and nodes written in Python."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.ops.errors import CannotExpand
from tj_torch.torch_private import ops as private

if TYPE_CHECKING:
    from tj_core.extend import DType, TensorProxy

__all__ = [
    "NonLeaf",
    "Saving",
    "autograd_nodes",
    "count_edges",
    "freed",
    "gradients_of",
    "may_require_grad",
    "python_nodes",
    "runs_python",
]


class NonLeaf(torch.autograd.Function):
    """Function that makes a tensor a non-leaf, so that it may be written in place."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the tensor from ``make``; ``leaf`` connects it to the graph."""
        return make()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the tensor's gradient as the gradient of the leaf."""
        return gradients[0], None

    @classmethod
    def of(cls, leaf: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Tensor from ``make`` as a non-leaf that depends on ``leaf``."""
        # Under `no_grad` the result would be a leaf that requires no grad.
        with torch.enable_grad():
            result: torch.Tensor = cls.apply(leaf, make)  # type: ignore[no-untyped-call]
        return result


def gradients_of(
    sources: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    *,
    create_graph: bool = False,
) -> Sequence[torch.Tensor | None]:
    """Gradients of ``inputs``; None for one that ``sources`` do not depend on.

    Autocast applies to the forward alone, so the backward runs without it.

    :raises CannotExpand: if the backward warns, which no body can reproduce.
    """
    if not sources or not inputs:
        return (None,) * len(inputs)
    with private.no_autocast(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(
            sources, inputs, tangents, allow_unused=True, create_graph=create_graph
        )
    if said:
        raise CannotExpand(f"its backward warns: {said[0].message}")
    return found


def runs_python(tensors: Iterable[torch.Tensor]) -> bool:
    """Test if the gradient of ``tensors`` passes through an ``autograd.Function``."""
    return any(True for _ in python_nodes(tensors))


def python_nodes(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Nodes of Functions that the gradient of ``tensors`` passes through."""
    python: Any = private.autograd_function_node()
    # The node that `NonLeaf` adds is none of the call's.
    own = f"{NonLeaf.__name__}Backward"
    nodes = (n for n in autograd_nodes(tensors) if isinstance(n, python))
    # Not `n.name()`: a node is the `ctx` on which users set attributes.
    return (n for n in nodes if python.name(n) != own)


def count_edges(
    tensors: Iterable[torch.Tensor], leaves: Mapping[str, torch.Tensor]
) -> dict[str, int]:
    """Number of gradients that the backward of ``tensors`` sums up for each of ``leaves``."""
    names = {id(leaf): name for name, leaf in leaves.items()}
    counts = dict.fromkeys(leaves, 0)
    for node in autograd_nodes(tensors):
        # `AccumulateGrad`, the node of a leaf, has it as `variable`.
        for following, _ in node.next_functions:
            name = names.get(id(getattr(following, "variable", None)))
            if name is not None:
                counts[name] += 1
    return counts


@dataclass(frozen=True, slots=True)
class Saving:
    """Nodes of a graph that may save tensors, collected before the backward runs.

    ``python`` is true if a node written in Python has saved a tensor.
    """

    nodes: tuple[Any, ...]
    python: bool

    @classmethod
    def of(cls, tensors: Iterable[torch.Tensor]) -> Saving:
        """Collect the nodes that compute ``tensors``."""
        nodes = tuple(autograd_nodes(tensors))
        kind: Any = private.autograd_function_node()
        python = [n for n in nodes if isinstance(n, kind)]
        others = tuple(n for n in nodes if not isinstance(n, kind))
        return cls(others, any(len(n._raw_saved_tensors) > 0 for n in python))

    def released(self) -> bool:
        """Test if the backward has released saved tensors, so that it cannot run again."""
        return self.python or any(freed(n) is not None for n in self.nodes)


def freed(node: Any) -> str | None:
    """Error of reading a saved tensor of ``node``, if the backward has released it, else None."""
    kind: Any = type(node)
    try:
        for name in _saves(kind):
            getattr(node, name)  # unset ones read as None
    except RuntimeError as error:
        return str(error)
    return None


@functools.cache
def _saves(kind: type) -> tuple[str, ...]:
    """Names of a node class's attributes that are saved tensors; none for a Function in Python."""
    raw = "_raw_saved_"
    names = ("_saved_" + n.removeprefix(raw) for n in dir(kind) if n.startswith(raw))
    return tuple(name for name in names if hasattr(kind, name))


def autograd_nodes(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Nodes of the autograd graph of ``tensors``, each once."""
    seen: set[Any] = set()
    todo = [t.grad_fn for t in tensors if t.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            yield node
            todo += [n for n, _ in node.next_functions if n is not None]


def may_require_grad(grad: bool, arguments: Iterable[TensorProxy], dtype: DType) -> bool:
    """Test if a result of ``dtype`` requires grad by the general rule.

    For devices missing on this machine, where autograd cannot run.
    """
    differentiable = dtype.kind in ("float", "complex")
    return grad and differentiable and any(a.requires_grad for a in arguments)
