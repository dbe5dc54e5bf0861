"""Values that a capture beside the program reads, which the program may change meanwhile.

A capture reads a value when it traces, and again when it builds the guards. If the program has
changed it in between, the guard would hold for another program than the one traced.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from tj_core.extend import TensorProxy, Trace

from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

__all__ = ["ChangedError", "ReadValues", "facts_of", "name_of", "value_of"]

_BY_IDENTITY = (type, types.FunctionType, types.BuiltinFunctionType, torch.nn.Module)
"""Classes of objects that guards tell apart by identity; others may be made anew by each look."""

_BY_VALUE = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)


class ChangedError(Exception):
    """A value that is captured has changed meanwhile; a later capture may find it at rest."""


class _Tensor(NamedTuple):
    """Facts of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    type: type
    requires_grad: bool


class ReadValues:
    """Facts of the values that one capture has read, by the expressions that they are read from.

    ``changed`` is the expression of one that has changed.
    """

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.changed: str | None = None
        self._any_length: set[str] = set()

    def note(self, source: Any, value: Any) -> None:
        """Note ``value`` as the result of the expression of ``source``.

        :raises ChangedError: if it gave another before.
        """
        self.known.setdefault(name_of(source), facts_of(value))
        self.check(source, value)

    def check(self, source: Any, value: Any) -> None:
        """Check ``value`` against the noted result of ``source``, if there is one.

        :raises ChangedError: if it has changed.
        """
        name = name_of(source)
        found = type(value) if name in self._any_length else facts_of(value)
        if name in self.known and self.known[name] != found:
            self._stop(name)

    def leave_length(self, source: Any, value: Any) -> None:
        """Let the list ``value`` of ``source`` get other items, until `note_length`."""
        self._any_length.add(name_of(source))
        self.known[name_of(source)] = type(value)

    def note_length(self, source: Any, value: Any) -> None:
        """Note the length of the list ``value``, which the program reads."""
        self._any_length.discard(name_of(source))
        self.known[name_of(source)] = facts_of(value)

    def _stop(self, name: str) -> NoReturn:
        self.changed = name
        raise ChangedError(name)

    def while_tracing(self, stack: ExitStack) -> None:
        """Note the values that Dynamo reads until ``stack`` is left."""
        from tj_torch.torch_private.dynamo import VariableBuilder

        def noting(original: Callable[..., Any]) -> Callable[..., Any]:
            def __call__(builder: Any, value: Any) -> Any:
                self.note(builder.source, value)
                return original(builder, value)

            return __call__

        replace(stack, VariableBuilder, "__call__", noting)

    def while_guarding(self, stack: ExitStack) -> None:
        """Check the values that Dynamo's guards are made of, until ``stack`` is left."""
        from tj_torch.torch_private.dynamo import GuardBuilder

        def checking(original: Callable[..., Any]) -> Callable[..., Any]:
            def get(builder: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
                value = original(builder, source, *args, **kwargs)
                self.check(source, value)
                return value

            return get

        replace(stack, GuardBuilder, "get", checking)

    def check_inputs(self, trace: Trace, sources: Mapping[int, str]) -> None:
        """Check the metadata of the trace's inputs against the noted values.

        :raises ChangedError: if an input has changed.
        """
        for i, source in sources.items():
            p, facts = trace.inputs[i], self.known.get(source)
            if not isinstance(p, TensorProxy) or not isinstance(facts, _Tensor):
                continue
            sizes = zip(p.shape, facts.shape, strict=False)
            same = all(a == b for a, b in sizes if isinstance(a, int))
            if not same or p.requires_grad is not facts.requires_grad:
                self._stop(source)


def name_of(source: Any) -> str:
    """The expression of a guard or source; a method up to PyTorch 2.10."""
    name = source.name
    return str(name() if callable(name) else name)


def value_of(builder: Any, source: Any) -> Any:
    """The value of ``source`` in this call; up to 2.12 the builder takes an expression."""
    return builder.get(source if isinstance(source.name, str) else name_of(source))


def facts_of(value: Any) -> Any:
    """Facts of ``value`` for guards to compare: of containers the length, of dicts the keys."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        size, kind = tuple(value.shape), type(value)
        return _Tensor(size, strides, value.dtype, value.device, kind, value.requires_grad)
    if isinstance(value, _BY_VALUE):
        return type(value), repr(value)
    if isinstance(value, _BY_IDENTITY):
        return type(value), id(value)
    if isinstance(value, dict):
        return type(value), [id(key) for key in value]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return type(value), len(value)
    return type(value)
