"""Dynamo's guards of an entry, which C++ checks on the locals of a frame."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import types

__all__ = ["DynamoGuards", "dynamo_guards"]


class Watches:
    """Finalizers of guarded objects, which end with this object.

    The objects are often classes and modules, which outlive the guards.
    """

    def __init__(self, on_dead: Callable[[], None]) -> None:
        self.on_dead = on_dead
        self.finalizers: list[weakref.finalize[..., Any]] = []
        self.kept: list[object] = []

    def add(self, watched: object) -> None:
        """Call ``on_dead`` when ``watched`` is freed; keep what allows no weak reference."""
        try:
            made = weakref.finalize(watched, self.on_dead)
        except TypeError:  # an `re.Match`: another one might get its address
            self.kept.append(watched)
            return
        made.atexit = False
        self.finalizers.append(made)

    def __del__(self) -> None:
        for finalizer in self.finalizers:
            finalizer.detach()


@dataclass(frozen=True, slots=True)
class DynamoGuards:
    """Dynamo's guards: the check of a frame's locals, the guards' texts, and the text of a failure.

    ``watches`` report the death of guarded objects. ``by_identity`` are tensors, by their
    names, whose metadata Dynamo does not guard.
    """

    check: Callable[[dict[str, Any]], bool]
    texts: Callable[[], list[str]]
    explain: Callable[[dict[str, Any]], Any]
    watches: Watches
    by_identity: Mapping[str, weakref.ref[torch.Tensor]]

    def failed(self, frame: dict[str, Any]) -> str | None:
        """Text of the first guard that does not hold for ``frame``; None if all hold."""
        found = self.explain(frame)
        if found.result:
            return None
        return str(found.verbose_code_parts[0]) if found.verbose_code_parts else ""


def dynamo_guards(
    root: types.FunctionType, graph: Any, on_dead: Callable[[], None]
) -> DynamoGuards:
    """Build Dynamo's guards, with ``on_dead`` as finalizer of guarded objects.

    Dynamo's own finalizers invalidate its cache entries, which do not exist here. Without one, a
    new object at a freed one's address would pass an identity guard. ``on_dead`` lives as long as
    any guarded object, so it must hold only weak references.
    """
    from tj_torch.torch_private.dynamo import CheckFunctionManager

    # Saved-tensor hooks are called at run time, so they need no guard, which is a Python call.
    for guard in [g for g in graph.guards if g.create_fn_name() == "AUTOGRAD_SAVED_TENSORS_HOOKS"]:
        graph.guards.inner.discard(guard)

    watches = Watches(on_dead)

    class Manager(CheckFunctionManager):  # type: ignore[misc] # found when first asked for
        def id_ref(self, obj: object, obj_str: str) -> int:
            # Dynamo's own finalizer would keep this manager and its contents alive as long as the
            # guarded object, which is often a class.
            if id(obj) not in self._weakrefs:
                watches.add(obj)
                with contextlib.suppress(TypeError):
                    self._weakrefs[id(obj)] = weakref.ref(obj)
            return id(obj)

    guards = Manager(root.__code__, graph).guard_manager
    sizes = size_texts(graph)
    return DynamoGuards(
        guards.check,
        lambda: [*map(str, guards.code_parts), *sizes],
        guards.check_verbose,
        watches,
        _by_identity(graph),
    )


def _by_identity(graph: Any) -> dict[str, weakref.ref[torch.Tensor]]:
    """The tensors that Dynamo guards by their identity: keys of dicts, and those of optimizers."""
    found = ((guard.name, guard.obj_weakref) for guard in graph.guards if _is_of_identity(guard))
    return {name: ref for name, ref in found if ref and isinstance(ref(), torch.Tensor)}


def _is_of_identity(guard: Any) -> bool:
    return "ID_MATCH" in (guard.guard_types or ())


def size_texts(graph: Any) -> list[str]:
    """Conditions on symbolic sizes among the guards of Dynamo's output ``graph``."""
    found = (g.code_list or () for g in graph.guards if g.create_fn_name() == "SHAPE_ENV")
    return [str(code) for codes in found for code in codes]
