"""Guards that tensors, modules and objects which a program tells apart are not one object.

`Module.parameters` and its like leave out what they have seen. Dynamo does not guard that two
parameters are two, since that is rare and takes time: tied weights would count twice. So it is
guarded only where a program compares them, or has them in a set or as keys of a dict. So are other
objects that are keys. Dynamo guards what their class is, and of functions, classes and bound
methods nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tj_torch.capture.dynamo.patches import OfGraph, stop
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["Apart", "type_of"]

_OF_OPTIMIZERS = ".param_groups["
"""Part of the sources of parameters that are keys of an optimizer's state, each its own."""


_Sources: TypeAlias = "dict[int, tuple[Any, dict[str, Any]]]"
"""Sources by expression for each object, by its id."""


class Apart:
    """The objects that the graph in progress tells apart: their sources, by kind and object.

    An object has a source for each way to it, such as that of a parameter and that of a key.
    """

    def __init__(self) -> None:
        self._kinds: OfGraph[tuple[_Sources, _Sources]] = OfGraph(lambda: ({}, {}))

    def note(self, variable: Any) -> None:
        """Note a tensor, a module or an object that the program tells from others of its kind."""
        from tj_torch.torch_private.dynamo import InstructionTranslator

        if not variable.is_realized() or (source := variable.source) is None:
            return
        if not variable.is_tensor() and not _is_told_by_identity(variable):
            return
        name = str(source.name)
        if _OF_OPTIMIZERS not in name:
            kinds = self._kinds.of(InstructionTranslator.current_tx().output)
            value = _object(variable)
            kinds[variable.is_tensor()].setdefault(id(value), (value, {}))[1][name] = source

    def different(self, output: Any) -> list[list[Any]]:
        """Sources that have to read different objects, for the graph of ``output``."""
        kinds = self._kinds.of(output)
        firsts = ([next(iter(s.values())) for _, s in known.values()] for known in kinds)
        return [sources for sources in firsts if len(sources) > 1]

    def same(self, output: Any) -> list[list[Any]]:
        """Sources that have to read one object, for the graph of ``output``."""
        kinds = self._kinds.of(output)
        each = ([*sources.values()] for known in kinds for _, sources in known.values())
        return [sources for sources in each if len(sources) > 1]

    def note_keys(self, stack: ExitStack) -> None:
        """Note keys of dicts, items of sets and what is sought there, until ``stack`` is left."""
        from tj_torch.torch_private.dynamo import HashableTracker

        def noting(original: Callable[..., Any]) -> Callable[..., Any]:
            def init(key: Any, *args: Any, **kwargs: Any) -> None:
                original(key, *args, **kwargs)
                for part in _parts(key.vt):
                    _guard_sought(part)
                    self.note(part)

            return init

        replace(stack, HashableTracker, "__init__", noting)
        stack.callback(self._kinds.forget)


def _object(variable: Any) -> Any:
    """The fake tensor or the module of ``variable``; else the variable."""
    if variable.is_tensor():
        return variable.as_proxy().node.meta.get("example_value", variable)
    return getattr(variable, "value", variable)


def _parts(variable: Any) -> Iterator[Any]:
    """Yield the items of a tuple, and of tuples in it; else the variable."""
    from tj_torch.torch_private.dynamo import TupleVariable

    # An `isinstance` looks at the value, see `_guard_sought`.
    looked = variable.is_realized() or issubclass(variable.peek_type(), tuple)
    if looked and isinstance(variable, TupleVariable):
        for item in variable.items:
            yield from _parts(item)
    else:
        yield variable


def _is_told_by_identity(variable: Any) -> bool:
    """Test for a module, or an object whose class has no ``__eq__`` or ``__hash__``."""
    from tj_torch.torch_private.dynamo import UserDefinedObjectVariable

    kind = type_of(variable)
    if kind is None or issubclass(kind, torch.nn.Module):
        return kind is not None
    plain = kind.__eq__ is object.__eq__ and kind.__hash__ is object.__hash__
    return plain and isinstance(variable, UserDefinedObjectVariable)


def _guard_sought(variable: Any) -> None:
    """Guard the identity of a function or a class that is sought in a dict or a set, or put there.

    Dynamo itself guards the keys and items of dicts and sets from outside of the program.
    """
    from tj_torch.torch_private.dynamo import (
        ConstDictKeySource,
        GuardBuilder,
        NonSerializableSetGetItemSource,
        install_guard,
    )

    if isinstance(variable.source, ConstDictKeySource | NonSerializableSetGetItemSource):
        return
    # Dynamo has hashes of some functions only as long as it has not looked at them.
    kind = type_of(variable) if variable.is_realized() else variable.peek_type()
    if kind is None:
        return
    if issubclass(kind, MethodType):
        stop("a bound method is sought among keys")  # equal by object and function
    if not issubclass(kind, _BY_IDENTITY):
        variable.realize()
    elif variable.source is not None:
        install_guard(variable.source.make_guard(GuardBuilder.ID_MATCH))


_BY_IDENTITY = (type, FunctionType, BuiltinFunctionType)


def type_of(variable: Any) -> type | None:
    """The class of what ``variable`` stands for, or None where Dynamo does not know it."""
    try:
        kind: type = variable.python_type()
    except NotImplementedError:
        return None
    return kind
