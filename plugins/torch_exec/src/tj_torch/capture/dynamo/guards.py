"""Guards of compiled entries that Dynamo leaves out.

Dynamo guards neither the global module hooks, nor all members of classes, nor the flags that choose
between kernels. Only those are checked that the program depends on; an entry that depends on none
has no further check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import define

from tj_torch.capture.dynamo.adapter import Absent, Lookup
from tj_torch.capture.dynamo.members import conditions, found_in
from tj_torch.ops.flags import function_at

if TYPE_CHECKING:
    import types

__all__ = ["GLOBAL_HOOKS", "extra_guards", "module_types"]

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


_CHECK = """
def check():
    try:
        return {terms}
    except AttributeError:
        return False
"""
"""Template of the check; a deleted member counts as changed."""


def extra_guards(
    classes: Iterable[type[torch.nn.Module]],
    flags: Iterable[str],
    lookups: Iterable[Lookup] = (),
    subclasses: Iterable[type] = (),
) -> tuple[Callable[[], bool] | None, tuple[str, ...]]:
    """Generate a check for the guards that Dynamo leaves out, with its conditions as text.

    ``classes`` are those of modules that ran, ``lookups`` members read from classes, ``flags``
    paths of global flags that calls read, ``subclasses`` classes of tensors.

    The check is None if there is nothing to check.
    """
    classes = tuple(classes)
    scope: dict[str, Any] = {"found_in": found_in, "Absent": Absent}
    terms: list[str] = []
    texts: list[str] = []
    forwards = [Lookup(cls, "forward", found_in(cls, "forward")) for cls in classes]
    for i, condition in enumerate(conditions((*forwards, *lookups), subclasses)):
        scope |= {f"c{i}": condition.owner, f"v{i}": condition.value}
        terms.append(f"{condition.expression.format(owner=f'c{i}')} is v{i}")
        texts.append(condition.text)
    if classes:
        hooks = {name: getattr(torch.nn.modules.module, name) for name in GLOBAL_HOOKS}
        scope |= hooks
        keys = {name: tuple(hook) for name, hook in hooks.items()}
        terms += [f"not {n}" if not k else f"tuple({n}) == {k!r}" for n, k in keys.items()]
        texts += [f"torch.nn.modules.module.{n} is unchanged" for n in hooks]
    read = ((path, function_at(path)) for path in flags)
    for i, (path, function) in enumerate((p, f) for p, f in read if f is not None):
        value = function()
        scope[f"g{i}"] = function
        terms.append(f"g{i}() == {value!r}")
        texts.append(f"{path}() == {value!r}")
    if not terms:
        return None, ()
    check = define(_CHECK.format(terms=" and ".join(terms)), "check", scope, "tj guards")
    return check, tuple(texts)
