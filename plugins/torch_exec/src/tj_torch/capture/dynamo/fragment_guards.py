"""Guards on members of classes, and on tensors, for parts of a program, checked by Dynamo's hook.

A whole program has guards of tj's own beside Dynamo's: `tj_torch.guards.members`, and ``tensors``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from tj_torch.guards.members import (
    Absent,
    Condition,
    found_in,
    is_pytorchs,
    member_conditions,
    running_members,
    size_conditions,
)
from tj_torch.guards.modules import guard_global_hooks
from tj_torch.guards.tensors import guard_metadata
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from tj_torch.capture.dynamo.observations import Observations
    from tj_torch.guards.conditions import Conditions

__all__ = ["guarded_fragments"]


@contextmanager
def guarded_fragments(noticed: Observations) -> Iterator[None]:
    """Guard each fragment that is captured on the members that it has found in classes."""
    from tj_torch.torch_private.dynamo import OutputGraph

    def ending(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_subgraph(self: Any, *args: Any, **kwargs: Any) -> Any:
            codes = frozenset(self.tracing_context.traced_code)
            running = running_members(noticed.classes, codes)
            members = member_conditions((*noticed.lookups.values(), *running))
            for found in (*members, *size_conditions(noticed.classes)):
                _add(noticed.conditions(self), found)
            if any(issubclass(cls, torch.nn.Module) for cls in noticed.classes):
                guard_global_hooks(noticed.conditions(self))
            if tensors := {f"tensor {i}": x for i, x in enumerate(_by_identity(self))}:
                guard_metadata(noticed.conditions(self), tensors)
            return original(self, *args, **kwargs)

        return compile_subgraph

    with ExitStack() as stack:
        replace(stack, OutputGraph, "compile_subgraph", ending)
        yield


def _by_identity(output: Any) -> Iterator[torch.Tensor]:
    """The tensors of a graph that Dynamo guards by their identity alone, and those of its modules.

    Tensors of optimizers are members of the graph; keys of dicts are inputs.
    """
    given = [node.meta.get("grapharg") for node in output.placeholders]
    keys = [arg.example for arg in given if arg is not None and arg.source.is_dict_key()]
    return (x for x in (*output.nn_modules.values(), *keys) if isinstance(x, torch.Tensor))


def _add(conditions: Conditions, found: Condition) -> None:
    owner = _held(conditions, "c", found.owner)
    code = f"{found.expression.format(owner=owner)} is {_held(conditions, 'v', found.value)}"
    conditions.add(code, found.text, found_in=found_in, Absent=Absent)


def _held(conditions: Conditions, wish: str, value: Any) -> str:
    """Code for ``value``, which guards do not keep: they would keep the program with it.

    Python's own objects, such as properties, have no weak references.
    """
    if (
        value is None
        or value is Absent
        or isinstance(value, bool)
        or (isinstance(value, type) and is_pytorchs(value))
    ):
        return conditions.bind(wish, value)
    try:
        return f"{conditions.bind(wish, ref(value))}()"
    except TypeError:
        return conditions.bind(wish, value)
