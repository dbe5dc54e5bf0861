"""Guards on members of classes for parts of a program, which Dynamo's own hook checks.

A whole program has guards of tj's own beside Dynamo's (`tj_torch.guards.members`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ref

from tj_torch.guards.members import (
    Absent,
    Condition,
    found_in,
    is_pytorchs,
    member_conditions,
    running_members,
)
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from tj_torch.capture.dynamo.conditions import Conditions
    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["guarded_fragments"]


@contextmanager
def guarded_fragments(noticed: Observations) -> Iterator[None]:
    """Guard each fragment that is captured on the members that it has found in classes."""
    from tj_torch.torch_private.dynamo import OutputGraph

    def ending(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_subgraph(self: Any, *args: Any, **kwargs: Any) -> Any:
            codes = frozenset(self.tracing_context.traced_code)
            running = running_members(noticed.classes, codes)
            for found in member_conditions((*noticed.lookups.values(), *running)):
                _add(noticed.conditions(self), found)
            return original(self, *args, **kwargs)

        return compile_subgraph

    with ExitStack() as stack:
        replace(stack, OutputGraph, "compile_subgraph", ending)
        yield


def _add(conditions: Conditions, found: Condition) -> None:
    owner = conditions.name(found.owner if is_pytorchs(found.owner) else ref(found.owner))
    read = found.expression.format(owner=owner if is_pytorchs(found.owner) else f"{owner}()")
    conditions.add(
        f"{read} is {_held(conditions, found.value)}", found.text, found_in=found_in, Absent=Absent
    )


def _held(conditions: Conditions, value: Any) -> str:
    """Code for ``value``, which guards do not keep: they would keep the program with it.

    Python's own objects, such as properties, have no weak references.
    """
    if value is None or value is Absent or isinstance(value, bool):
        return conditions.name(value)
    try:
        return f"{conditions.name(ref(value))}()"
    except TypeError:
        return conditions.name(value)
