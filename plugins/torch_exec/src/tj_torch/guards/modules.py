"""Guards on modules: the ``forward`` of their classes, and hooks on all modules.

Dynamo guards neither. Only programs in which a module runs have these guards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.guards.members import Lookup, found_in

if TYPE_CHECKING:
    import types

    from tj_torch.guards.conditions import Conditions
    from tj_torch.guards.guard import Guards

__all__ = ["GLOBAL_HOOKS", "forwards", "guard_global_hooks", "hooks_of", "module_types"]

GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
"""Names of the dictionaries in ``torch.nn.modules.module`` of hooks on every module."""


def module_types(
    fn: Any, graph: torch.fx.GraphModule | None, codes: Iterable[types.CodeType]
) -> tuple[type[torch.nn.Module], ...]:
    """Classes of modules that ran in the capture of ``fn``, in order of appearance.

    Modules that computed something are in the metadata of ``graph``'s nodes; of ``fn``'s own
    submodules, those count as well whose ``forward`` is among the traced ``codes``.
    """
    found = dict.fromkeys(_computing(graph)) if graph is not None else {}
    traced = set(codes)
    for module in fn.modules() if isinstance(fn, torch.nn.Module) else ():
        if getattr(type(module).forward, "__code__", None) in traced:
            found[type(module)] = None
    return tuple(found)


def _computing(graph: torch.fx.GraphModule) -> Iterator[type[torch.nn.Module]]:
    for node in _nodes(graph):
        for _, kind in (node.meta.get("nn_module_stack") or {}).values():
            if isinstance(kind, type) and issubclass(kind, torch.nn.Module):
                yield kind


def _nodes(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Nodes of a graph, and of the operand graphs of its higher-order operations."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def hooks_of(module: torch.nn.Module) -> list[Any]:
    """Dictionaries of hooks that run when ``module`` is called."""
    return [vars(module)[name] for name in _HOOKS]


def forwards(classes: Iterable[type[torch.nn.Module]]) -> list[Lookup]:
    """The look-ups of ``forward`` in ``classes``."""
    return [Lookup(cls, "forward", found_in(cls, "forward")) for cls in classes]


def guard_global_hooks(guards: Guards | Conditions) -> None:
    """Guard that the hooks on all modules are the same as now."""
    for name in GLOBAL_HOOKS:
        hooks = getattr(torch.nn.modules.module, name)
        bound, keys = guards.bind("h", hooks), tuple(hooks)
        # Hooks have numbers that are not given twice, so that equal keys mean equal hooks.
        term = f"tuple({bound}) == {keys!r}" if keys else f"not {bound}"
        guards.add(term, text=f"torch.nn.modules.module.{name} is unchanged")
