"""What a capture comes across beside its graph, for the guards that Dynamo does not make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tj_torch.torch_private.features import Feature

__all__ = ["Absent", "Lookup", "Noticed"]


class Absent:
    """What a lookup finds where there is nothing."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A member that the program reads from a class: ``found``, before any descriptor acts.

    `Absent` if there is none. ``without`` are the classes that were looked at before, and do not
    have it themselves. ``fixed`` data is guarded by nobody else.
    """

    cls: type
    name: str
    found: Any
    without: tuple[type, ...] = ()
    fixed: bool = False


@dataclass(slots=True)
class Noticed:
    """What one capture came across beside its graph.

    ``classes`` are those of objects it used, ``subclasses`` those of its tensors, if not PyTorch's;
    ``lost`` has features that this PyTorch lacks, with the reason of each.
    """

    lookups: dict[tuple[type, str], Lookup] = field(default_factory=dict)
    classes: dict[type, None] = field(default_factory=dict)
    subclasses: dict[type, None] = field(default_factory=dict)
    uninitialized: bool = False
    lost: list[tuple[Feature, str]] = field(default_factory=list)

    def look_up(
        self, cls: type, name: str, *, instance: object = None, fixed: bool = False
    ) -> None:
        """Note that ``name`` was looked for in ``cls``, for ``instance``."""
        known = self.lookups.get((cls, name))
        if known is not None and known.fixed >= fixed:
            return
        without: list[type] = []
        for base in cls.__mro__:
            if name in vars(base):
                lookup = Lookup(cls, name, vars(base)[name], tuple(without), fixed)
                break
            without.append(base)
        else:
            if _has_itself(instance, name):
                return
            lookup = Lookup(cls, name, Absent)
        self.lookups[cls, name] = lookup


def _has_itself(instance: object, name: str) -> bool:
    """Whether an object has ``name`` whatever its class has; modules keep theirs in three dicts."""
    own: dict[str, Any] = getattr(instance, "__dict__", {})
    if name in own:
        return True
    members = (own.get(kind) for kind in ("_parameters", "_buffers", "_modules"))
    return isinstance(instance, torch.nn.Module) and any(name in (m or ()) for m in members)
