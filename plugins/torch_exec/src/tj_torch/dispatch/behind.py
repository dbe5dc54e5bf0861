"""The states behind callables that `tj.jit` did not make: of ``torch.compile``, and of modules."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import Entry, Fallback, Guard, Jitted
from tj_core.internal import Fragment

from tj_torch.capture.dynamo.fragments import (
    Break,
    Frame,
    cached_backends,
    compiled_callable,
    owner,
)
from tj_torch.capture.sources import stack_source
from tj_torch.dispatch.fallbacks import first_lines
from tj_torch.dispatch.recompiles import changed

if TYPE_CHECKING:
    from tj_core.extend import Compilation

__all__ = ["entry_of", "noted", "recompiled", "states_behind"]

_ATTRIBUTE = "_tj_compiled"
"""Attribute of the objects that ``torch.compile`` makes, one a call: its `_Compiled`.

Dynamo keeps these objects for good.
"""


@dataclass(eq=False)
class _Compiled:
    """The programs of one call of ``torch.compile``.

    Compiled functions own their states. ``head`` has no entries, but the fallbacks of graphs for
    which there is no compiled function.
    """

    head: Jitted
    states: weakref.WeakSet[Jitted] = field(default_factory=weakref.WeakSet)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make nothing of it in a copy, or after pickling: a copied function has no program yet."""
        return type(None), ()

    def all(self) -> list[Jitted]:
        """The states, in the order of their entries."""
        found = [state for state in self.states if state.last is not None]
        return [self.head, *sorted(found, key=lambda state: state.entries[0].number)]


def recompiled(frame: Frame | None) -> str:
    """The guard of an earlier program that fails for ``frame``, in words; empty if there is none.

    Dynamo's hook compiles the frame.
    """
    return changed(frame.failed, frame.values) if frame is not None and frame.failed else ""


def entry_of(compilation: Compilation, jitted: Jitted, frame: Frame | None) -> Entry:
    """The entry of the graph of ``frame``, which Dynamo's hook compiles, with its place in the
    program.
    """
    if frame is None:
        return Entry(compilation)
    # `tj_root_0` is the frame that tj generates around the program.
    name = jitted.name if frame.function.startswith("tj_root") else frame.function
    texts = frame.guards
    part = Fragment(name, _fallback(frame.after), _fallback(frame.ended))
    for found in (part.after, part.ended):
        if found is not None:
            jitted.note_break(found, name)
    return Entry(compilation, lambda: tuple(map(Guard, texts())), part, jitted.reason)


def _fallback(found: Break | None) -> Fallback | None:
    if found is None:
        return None
    return Fallback(f"graph break: {first_lines(found.reason)}", stack_source(found.stack))


def noted(
    jitted: Jitted,
    make_head: Callable[[], Jitted],
    compile: Callable[[], Callable[..., Any]],
) -> Callable[..., Any]:
    """Run ``compile`` for a graph of ``torch.compile``, so that `states_behind` finds ``jitted``.

    Returns the compiled function, which owns ``jitted``.
    """
    holder = owner(_is_backend)
    if holder is None:  # the backend was given to torch._dynamo.optimize as it is
        return compile()
    compiled = getattr(holder, _ATTRIBUTE, None)
    if compiled is None:
        compiled = _Compiled(make_head())
        setattr(holder, _ATTRIBUTE, compiled)
    jitted.breaks = compiled.head.breaks
    try:
        function = compile()
    finally:
        if jitted.last is None:
            compiled.head.stats.include(jitted.stats)
    if jitted.last is None:
        return function
    compiled.states.add(jitted)
    # Not an attribute of `function`, which `jitted` refers to: that would be a cycle.
    owning = partial(function)
    vars(owning)["__tj__"] = jitted
    return owning


def states_behind(fn: Any) -> list[Jitted] | None:
    """The states behind ``fn``, which ``torch.compile`` returned, or a module that holds some.

    None for any other object.
    """
    if not isinstance(fn, torch.nn.Module):
        return _of_callable(fn)
    found: dict[Jitted, None] = {}
    known = False
    for module in fn.modules():
        for value in _callables(module):
            states = _of_callable(value)
            known = known or states is not None
            found |= dict.fromkeys(states or ())
    return list(found) if known else None


def _callables(module: torch.nn.Module) -> Iterator[Any]:
    """A module, the callables that are its attributes, and the methods of its class."""
    yield module
    yield from vars(module).values()
    for cls in type(module).__mro__:
        # Its methods, and those of its bases, are PyTorch's.
        if cls is torch.nn.Module:
            break
        yield from vars(cls).values()


def _of_callable(fn: Any) -> list[Jitted] | None:
    state = getattr(fn, "__tj__", None) if callable(fn) else None
    if isinstance(state, Jitted):
        return [state]
    backend = compiled_callable(fn, _is_backend) if callable(fn) else None
    if backend is None:
        return None
    shared = [other for other in cached_backends(fn) if other == backend]
    records = dict.fromkeys(
        record
        for holder in (backend, *shared)
        if isinstance(record := getattr(holder, _ATTRIBUTE, None), _Compiled)
    )
    return [state for record in records for state in record.all()]


def _is_backend(function: Any) -> bool:
    """Test for tj's backend of ``torch.compile``."""
    return getattr(function, "__module__", None) == "tj_torch.backend"
