"""Record of a capture beside its graph, for guards that Dynamo does not make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from tj_torch.capture.dynamo.patches import is_nested
from tj_torch.guards.conditions import Conditions
from tj_torch.guards.members import Absent, Lookup

if TYPE_CHECKING:
    from tj_torch.capture.dynamo.equal_parts import Equals
    from tj_torch.capture.dynamo.read_values import ReadValues
    from tj_torch.torch_private.features import Correction

__all__ = ["Observations"]


@dataclass(slots=True)
class Observations:
    """Record of one capture beside its graph.

    ``classes`` are those of objects it used, ``subclasses`` those of its tensors, except
    PyTorch's; ``lost`` has features that this PyTorch lacks, each with the reason.
    ``uninitialized``: the program initializes a lazy module. ``read`` has the values that were
    read, where the program runs on meanwhile. ``changes``: the program changes Python objects;
    ``draws``: it asks Python for random numbers. ``deferred``: why it may have to run as it is for
    some data, each reason with the stack; None if it cannot. ``handled`` are the nodes whose errors
    it handles, of all attempts at a graph. ``records`` counts regions that may be
    used again, ``reused`` their uses; ``equals`` are modules captured so, if any is to be.
    """

    lookups: dict[tuple[type, str], Lookup] = field(default_factory=dict)
    classes: dict[type, None] = field(default_factory=dict)
    subclasses: dict[type, None] = field(default_factory=dict)
    uninitialized: bool = False
    changes: bool = False
    draws: bool = False
    deferred: list[tuple[str, Any]] | None = None
    handled: dict[torch.fx.Node, None] = field(default_factory=dict)
    lost: list[tuple[Correction, str]] = field(default_factory=list)
    read: ReadValues | None = None
    records: int = 0
    reused: int = 0
    equals: Equals | None = None
    _conditions: WeakKeyDictionary[Any, Conditions] = field(default_factory=WeakKeyDictionary)

    def defer(self, tx: Any, what: str) -> bool:
        """Note that the program runs as it is for data for which ``what``; False if it cannot.

        ``tx`` is Dynamo's interpreter there. A function of an operation such as `flex_attention`
        has no program of its own that could run.
        """
        from tj_torch.torch_private.dynamo import TracingContext

        if self.deferred is None or is_nested(tx):
            return False
        self.deferred.append((what, TracingContext.extract_stack()))
        return True

    def conditions(self, graph: Any) -> Conditions:
        """Conditions of a graph, Dynamo's ``OutputGraph``, to which more can be added."""
        key = graph.tracing_context  # the graph itself has no hash
        found = self._conditions.get(key)
        if found is None:
            found = self._conditions[key] = Conditions()
        return found

    def look_up(
        self, cls: type, name: str, *, instance: object = None, fixed: bool = False
    ) -> None:
        """Note a look-up of ``name`` in ``cls``, for ``instance``."""
        known = self.lookups.get((cls, name))
        hidden = _has_itself(instance, name)
        if known is not None:
            # A look-up of data without a guard of Dynamo's asks for more than one with it.
            if known.fixed >= fixed and known.hidden >= hidden:
                return
            fixed, hidden = fixed or known.fixed, hidden or known.hidden
        without: list[type] = []
        for base in cls.__mro__:
            if name in vars(base):
                lookup = Lookup(cls, name, vars(base)[name], tuple(without), fixed, hidden)
                break
            # An override in one of these classes would be found first.
            without.append(base)
        else:
            if hidden:
                return
            lookup = Lookup(cls, name, Absent)
        self.lookups[cls, name] = lookup


def _has_itself(instance: object, name: str) -> bool:
    """Test if an object itself has ``name``; modules keep theirs in three dicts as well."""
    own: dict[str, Any] = getattr(instance, "__dict__", {})
    if name in own:
        return True
    members = (own.get(kind) for kind in ("_parameters", "_buffers", "_modules"))
    return isinstance(instance, torch.nn.Module) and any(name in (m or ()) for m in members)
