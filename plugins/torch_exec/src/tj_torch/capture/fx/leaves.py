"""Record the calls that a leaf module of an FX graph makes, as a graph of its own.

``symbolic_trace`` records a ``torch.nn`` module as one call. Here its ``forward`` runs once on fake
tensors, and its torch-level calls are recorded: only for PyTorch's own modules that make nothing
but such calls, since other Python code could do anything.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from tj_torch.guards.inputs import OpenProgramError
from tj_torch.guards.modules import GLOBAL_HOOKS, hooks_of
from tj_torch.torch_private.runtime import pytree

if TYPE_CHECKING:
    from tj_torch.capture.fx.facts import FxFacts

__all__ = ["LeafRecorder", "is_transparent"]


def is_transparent(module: torch.nn.Module, facts: FxFacts) -> bool:
    """Test for a module that does nothing but torch-level calls."""
    everywhere = (getattr(torch.nn.modules.module, name) for name in GLOBAL_HOOKS)
    return not any(everywhere) and all(
        _is_own(child) and not facts.refuses_module(type(child)) for child in module.modules()
    )


def _is_own(module: torch.nn.Module) -> bool:
    cls = type(module)
    home = sys.modules.get(cls.__module__)
    own = (
        cls.__module__.startswith("torch.nn.modules.") and getattr(home, cls.__name__, None) is cls
    )
    changed = "forward" in vars(module) or any(hooks_of(module))
    return own and not changed


class LeafRecorder(TorchFunctionMode):
    """Mode that records a module's torch-level calls on fake tensors in ``graph``."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self.nodes: dict[int, torch.fx.Node] = {}
        self.alive: list[Any] = []

    def given(self, tensor: torch.Tensor, name: str) -> torch.fx.Node:
        """Add a placeholder for a tensor that the calls may take."""
        node = self.nodes[id(tensor)] = self.graph.placeholder(name)
        self.alive.append(tensor)
        return node

    def known_as(self, other: torch.Tensor, tensor: torch.Tensor) -> None:
        """Record ``other`` as ``tensor``: recurrent modules keep a list of the real parameters."""
        self.nodes[id(other)] = self.nodes[id(tensor)]

    def record(self, module: torch.nn.Module, arguments: Any, state: Any) -> None:
        """Run ``module`` with ``state`` for its parameters and buffers.

        :raises OpenProgramError: if it does anything but call PyTorch's functions.
        """
        args, kwargs = arguments
        try:
            with self:
                result = torch.func.functional_call(
                    module, state, tuple(args), dict(kwargs), tie_weights=False
                )
        except OpenProgramError:
            raise
        except Exception as error:
            raise OpenProgramError(f"{type(module).__qualname__}: {error}") from error
        self.graph.output(self.arguments(result))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run ``func``, and record it if it returns or writes tensors."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        made = list(_tensors(result))
        if made or func is torch.Tensor.__setitem__:
            self._record(func, args, kwargs, result)
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if getattr(func, "__name__", "") in ("__get__", "__set__"):
            raise OpenProgramError("a leaf module reads or sets an attribute of a tensor")
        args, kwargs = self.arguments(args), self.arguments(kwargs)
        node = self.graph.call_function(func, tuple(args), dict(kwargs))
        self.alive.append(result)
        if isinstance(result, torch.Tensor):
            self.nodes[id(result)] = node
            return
        for i, item in enumerate(result):
            if not isinstance(item, torch.Tensor):
                raise OpenProgramError("a leaf module gets tensors in a nested structure")
            self.nodes[id(item)] = self.graph.call_function(operator.getitem, (node, i))

    def arguments(self, tree: Any) -> Any:
        """``tree`` with the nodes of its tensors.

        :raises OpenProgramError: for a tensor that is neither an input nor computed.
        """

        def leaf(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in self.nodes:
                raise OpenProgramError("a leaf module takes a tensor from elsewhere")
            return self.nodes[id(value)]

        return pytree.tree_map(leaf, tree)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))
