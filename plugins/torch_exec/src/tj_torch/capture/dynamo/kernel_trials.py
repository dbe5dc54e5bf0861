"""Trial calls of PyTorch's kernels for calls that only their fake kernels take.

Kernels refuse some data types and mixtures of them: ``x - 1.5`` of bools, ``x % 2`` of complex
numbers. Inside of a handler, the program is to see the error, and so is the caller if nothing reads
the result.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tj_torch.runtime.modes import without_modes
from tj_torch.torch_private.runtime import OpOverload, pytree

__all__ = ["is_refused", "lacks_kernel", "unread"]

_MOST = 4096
"""Elements of the largest argument of a call that is no pointwise one and that is tried."""

_EVERYWHERE = ({torch.float32}, {torch.float64}, {torch.float32, torch.float64})
"""Data types that kernels of all operators have."""


def is_refused(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Test if PyTorch's kernel of ``operator`` raises on ones, in place of the fakes given.

    A pointwise call is tried on two elements, another one on tensors of the same shapes. Random
    operators are not tried, nor is what is on another device or has symbols.
    """
    if not isinstance(operator, OpOverload) or operator.namespace != "aten":
        return False
    pointwise = torch.Tag.pointwise in operator.tags
    random = torch.Tag.nondeterministic_seeded in operator.tags
    return not random and _error(operator, args, kwargs, pointwise=pointwise) is not None


_PLAIN = re.compile(r"torch\.((Tensor|nn\.functional|special|linalg|fft)\.)?\w+|aten\.\w+(\.\w+)?")
"""Names of functions that only compute, and may draw random numbers: others are not tried."""


def lacks_kernel(function: Callable[..., Any], name: str, node: torch.fx.Node) -> bool:
    """Test if PyTorch has no kernel for the data types of ``node``, a call of ``function``.

    The function, whose symbol is ``name``, is tried on ones, of `_MOST` elements at most, and not
    where all tensors are of float32 or float64.
    """
    if _PLAIN.fullmatch(name) is None:
        return False
    args, kwargs = pytree.tree_map(_value, (node.args, node.kwargs))
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if {x.dtype for x in tensors} in _EVERYWHERE:
        return False
    drawn = torch.get_rng_state()
    try:
        return isinstance(_error(function, args, kwargs, pointwise=False), NotImplementedError)
    finally:
        torch.set_rng_state(drawn)


def unread(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes of ``graph`` whose values no result is made of, but for writes in place."""
    found: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op in ("call_function", "call_method") and found.issuperset(node.users):
            found.add(node)
    return found


def _value(argument: Any) -> Any:
    """The example of a node, another argument as it is."""
    return argument.meta.get("example_value") if isinstance(argument, torch.fx.Node) else argument


def _error(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, pointwise: bool
) -> Exception | None:
    """The error that ``function`` raises on ones in place of the fakes given; None without one.

    What is on another device, or has symbols, is not tried.
    """
    given = pytree.tree_leaves((args, kwargs))
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    symbols = any(isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool) for x in given)
    if symbols or not tensors or not all(_is_plain(t, pointwise) for t in tensors):
        return None

    def real(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = (2,) if pointwise and value.dim() else tuple(value.shape)
        return torch.ones(shape, dtype=value.dtype)

    with without_modes(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made, named = pytree.tree_map(real, (tuple(args), dict(kwargs)))
        try:
            function(*made, **named)
        except Exception as error:  # whatever the kernel raises
            return error
    return None


def _is_plain(value: torch.Tensor, pointwise: bool) -> bool:
    """Test for a tensor in memory, of numbers, of which another one can be made here."""
    plain = value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
    if not plain or pointwise:
        return plain
    # Symbols that a guard has made one number multiply to an int.
    return all(isinstance(size, int) for size in value.shape) and value.numel() <= _MOST
