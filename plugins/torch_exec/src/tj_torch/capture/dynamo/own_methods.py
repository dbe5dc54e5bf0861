"""Methods of the program's classes that Dynamo would run while it captures, and not in each call.

A class, a member of an enum, or a number of a derived class is a constant to Dynamo. An operator or
a builtin function of constants it computes at once, by Python, and with it a method that the
program defines for them: ``A[3]`` calls ``__class_getitem__``, ``len(A)`` a metaclass, ``str(n)``
the class of ``n``. Such a call is traced here, or breaks the graph.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import math
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo import releases
from tj_torch.capture.dynamo.enums import members_of_old
from tj_torch.capture.dynamo.patches import (
    Stopped,
    forget_handlers,
    insisting,
    replace_instruction,
    stop,
)
from tj_torch.guards.members import is_replaceable
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = [
    "is_known",
    "is_own",
    "keep_stops",
    "leave_own_methods",
    "may_change",
]


def keep_stops(stack: ExitStack) -> None:
    """Keep Dynamo from computing a function of constants at which a correction breaks the graph.

    It takes any break inside of a builtin function for a function that it cannot trace.
    """
    from tj_torch.torch_private.dynamo import InstructionTranslatorBase, builtin

    def asking(original: Callable[..., bool]) -> Callable[..., bool]:
        def check_unspec_or_constant_args(*args: Any) -> bool:
            return not isinstance(sys.exc_info()[1], Stopped) and original(*args)

        return check_unspec_or_constant_args

    replace(stack, builtin, "check_unspec_or_constant_args", asking)
    # From 2.15 on, attributes and formatted texts are computed so, too.
    for name in ("_load_attr", "_format_value"):
        if has(InstructionTranslatorBase, name):
            replace(stack, InstructionTranslatorBase, name, insisting)


def leave_own_methods(stack: ExitStack) -> None:
    """Trace ``__class_getitem__``; break the graph at other methods of classes of constants."""
    from tj_torch.torch_private.dynamo import (
        BuiltinVariable,
        ConstantVariable,
        InstructionTranslatorBase,
        TorchInGraphFunctionVariable,
        functions,
        user_defined,
    )

    classes = user_defined.UserDefinedClassVariable
    forget_handlers(stack, *_METHODS)
    replace(stack, BuiltinVariable, "call_function", _builtin)
    replace(stack, functions.PolyfilledFunctionVariable, "call_function", _folding("fn"))
    replace(stack, TorchInGraphFunctionVariable, "call_function", _folding("value"))
    replace(stack, ConstantVariable, "call_method", _of_text)
    replace(stack, InstructionTranslatorBase, "_format_value", _formatting)
    replace(stack, classes, "call_function", _constructing)
    releases.attributes(stack, classes, _reading)
    _look_at_conditions(stack)


def _builtin(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import BuiltinVariable, ConstantVariable, VariableTracker

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        names = _METHODS.get(self.fn, ()) if _is_hashable(self.fn) else ()
        if not names:
            return original(self, tx, args, kwargs)
        if self.fn is operator.getitem and _is_made_tuple(args[0]):
            return args[0].call_method(tx, "__getitem__", list(args[1:]), {})
        _look(args, names, deep=self.fn in _DEEP)
        _look(kwargs.values(), names, deep=True)
        if self.fn is str and len(args) == 1 and _is_repr(args[0]):
            return BuiltinVariable(repr).call_function(tx, args, kwargs)
        if self.fn is operator.getitem and _has_items(args[0]):
            item = ConstantVariable.create("__class_getitem__")
            method = VariableTracker.build(tx, getattr).call_function(tx, [args[0], item], {})
            return method.call_function(tx, args[1:], {})
        return original(self, tx, args, kwargs)

    return call_function


def _folding(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Look at calls of functions that a variable has as its attribute ``name``."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            function = getattr(self, name)
            if names := _METHODS.get(function, ()) if _is_hashable(function) else ():
                _look((*args, *kwargs.values()), names, deep=True)
            return original(self, tx, args, kwargs)

        return call_function

    return make


def _of_text(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import UserDefinedObjectVariable

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if isinstance(self.value, str | bytes) and name in _FORMATS:
            _look((*args, *kwargs.values()), _TEXTS, deep=True)
            if name == "__mod__" and isinstance(args[0].realize(), UserDefinedObjectVariable):
                stop("__mod__() of a text and an object of the program's")
        return original(self, tx, name, args, kwargs)

    return call_method


def _formatting(original: Callable[..., Any]) -> Callable[..., Any]:
    def _format_value(self: Any, *args: Any) -> Any:
        _look(self.stack[-1:], _TEXTS, deep=True)
        return original(self, *args)

    return _format_value


def _constructing(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(self.value, enum.EnumMeta) and is_own(self.value, "_missing_"):
            stop(f"{self.value.__qualname__}._missing_ may be called")
        if isinstance(self.value, enum.EnumMeta) and not self.value.__members__:
            stop("an enum that the program makes")  # one for all calls, to Dynamo
        return original(self, tx, args, kwargs)

    return call_function


def _reading(original: Callable[..., Any]) -> Callable[..., Any]:
    def var_getattr(self: Any, tx: Any, name: str) -> Any:
        if is_own(type(self.value), "__getattribute__"):
            stop(f"attributes of {self.value.__qualname__} are read by its metaclass")
        return original(self, tx, name)

    return var_getattr


def _look_at_conditions(stack: ExitStack) -> None:
    """Break the graph where a class of the program says whether a condition is met.

    Comparisons have handlers that Dynamo made as it was imported.
    """
    from tj_torch.torch_private.dynamo import InstructionTranslatorBase

    def asking(original: Callable[..., Any]) -> Callable[..., Any]:
        def instruction(self: Any, inst: Any) -> Any:
            _look(self.stack[-1:], _TRUTHS, deep=False)
            return original(self, inst)

        return instruction

    def comparing(original: Callable[..., Any]) -> Callable[..., Any]:
        def instruction(self: Any, inst: Any) -> Any:
            if names := _COMPARISONS.get(str(inst.argval)):
                _look(self.stack[-2:], names, deep=True)
            return original(self, inst)

        return instruction

    replace_instruction(stack, "COMPARE_OP", comparing)
    for name in dis.opmap:
        asks = "JUMP_IF" in name or "_JUMP_FORWARD_IF" in name or "_JUMP_BACKWARD_IF" in name
        asks = (asks and not name.endswith(("NONE", "MATCH"))) or name in ("TO_BOOL", "UNARY_NOT")
        if asks and has(InstructionTranslatorBase, name):
            replace_instruction(stack, name, asking)


# --------------------------------------------------------------------------- methods

_TEXTS = ("__str__", "__repr__", "__format__")
_TRUTHS = ("__bool__", "__len__")
_ITEMS = ("__iter__", "__getitem__")
_NUMBERS = (
    *("__index__", "__int__", "__float__", "__complex__", "__trunc__", "__floor__", "__ceil__"),
    "__round__",
)
_ORDERS = ("__lt__", "__gt__")
_FORMATS = frozenset({"format", "format_map", "__mod__", "__format__"})
"""Methods of texts that call the methods of what they format."""


def _methods() -> dict[Callable[..., Any], tuple[str, ...]]:
    """Methods that builtin functions and operators of constants call, by function."""
    found: dict[Callable[..., Any], tuple[str, ...]] = {
        **dict.fromkeys((str, repr, ascii, format, str.format), _TEXTS),
        **dict.fromkeys((bool, operator.not_, operator.truth), _TRUTHS),
        **dict.fromkeys((all, any), (*_TRUTHS, *_ITEMS)),
        **dict.fromkeys((int, float, complex, bin, hex, oct, chr, operator.index), _NUMBERS),
        **{f: _NUMBERS for f in vars(math).values() if callable(f)},
        **dict.fromkeys((max, min), (*_ORDERS, *_ITEMS)),
        sorted: (*_ORDERS, *_ITEMS),
        sum: (*_ITEMS, "__add__", "__radd__"),
        **dict.fromkeys((operator.countOf, operator.indexOf), (*_ITEMS, "__eq__")),
        round: _NUMBERS,
        divmod: ("__divmod__", "__rdivmod__"),
        pow: ("__pow__", "__rpow__"),
        abs: ("__abs__",),
        len: ("__len__",),
        hash: ("__hash__",),
        dir: ("__dir__",),
        issubclass: ("__subclasshook__",),  # metaclasses are asked about in `metaclasses`
        operator.length_hint: ("__length_hint__", "__len__"),
        operator.contains: ("__contains__", *_ITEMS, "__eq__"),
    }
    for name in dir(operator):
        function, method = getattr(operator, name), f"__{name.strip('_')}__"
        if name.startswith("__") or function in found or not hasattr(operator, method):
            continue
        plain = name.strip("_")
        bases = (plain, plain[1:]) if plain.startswith("i") else (plain,)
        names = [f"__{prefix}{base}__" for base in bases for prefix in ("", "r")]
        found[function] = (*names, *_REFLECTED.get(plain, ()))
    found[operator.mod] += _TEXTS  # of a text
    found[operator.imod] += _TEXTS
    return found


_REFLECTED = {
    **{"lt": ("__gt__",), "gt": ("__lt__",), "le": ("__ge__",), "ge": ("__le__",)},
    "ne": ("__eq__",),
}
_METHODS = _methods()
_COMPARISONS = {
    sign: _METHODS[getattr(operator, name)]
    for sign, name in zip(dis.cmp_op, ("lt", "le", "eq", "ne", "gt", "ge"), strict=False)
}
_DEEP = frozenset(
    f for f, names in _METHODS.items() if names[0] in ("__str__", "__eq__", "__ne__", "__lt__")
) | {issubclass, all, any, max, min, sum, sorted, operator.mod, operator.contains}
"""Functions that call methods of what is in a list, too."""


def _is_hashable(function: Any) -> bool:
    return isinstance(function, builtins.type) or getattr(function, "__hash__", None) is not None


def _look(variables: Iterable[Any], names: tuple[str, ...], *, deep: bool) -> None:
    """Break the graph if a constant among the variables has a method of the program's."""
    for variable in variables:
        for value in _constants(variable, deep):
            if found := next((name for name in names if _defines(value, name)), None):
                stop(f"{_name(value)}.{found} is called")


_VALUES = (enum.Enum, int, float, complex, str, bytes, tuple, frozenset)
"""Classes of values; Dynamo computes with those of derived classes as with constants."""


def _constants(variable: Any, deep: bool) -> Iterator[Any]:
    """Values of what Dynamo takes for constants and the program has a class for."""
    from tj_torch.torch_private.dynamo import BaseListVariable, ConstantVariable, user_defined

    variable = variable.realize()
    classes = (user_defined.UserDefinedClassVariable, members_of_old() or ())
    if isinstance(variable, classes):
        yield variable.value
    elif isinstance(variable, user_defined.UserDefinedObjectVariable):
        value = variable.value
        # Methods of classes derived from containers are traced.
        traced = isinstance(value, dict | list | set)
        if isinstance(value, _VALUES) or (not traced and _is_constant(variable)):
            yield value
    elif isinstance(variable, ConstantVariable) or variable.is_tensor():
        return
    elif deep and isinstance(variable, BaseListVariable):
        for item in variable.items:
            yield from _constants(item, deep)
    elif deep and isinstance(items := getattr(variable, "items", None), dict):
        for key, value in items.items():
            yield from _constants(getattr(key, "vt", key), deep)
            yield from _constants(value, deep)


def _is_constant(variable: Any) -> bool:
    try:
        return bool(variable.is_python_constant())
    except NotImplementedError:  # of an object with a tensor in it
        return False


def _defines(value: Any, name: str) -> bool:
    """Test if a method that is called for ``value`` is the program's, in Python."""
    if isinstance(value, type) and name == "__subclasshook__":
        return is_own(value, name)
    return is_own(type(value), name)


def is_own(cls: type, name: str) -> bool:
    """Test if the method ``name`` of ``cls`` is the program's, and not Python's or PyTorch's."""
    found = next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), None)
    function = getattr(found, "__func__", found)
    if not isinstance(function, FunctionType) or is_known(function.__module__):
        return False
    # What a decorator of dataclasses has made of the fields is the same in each call.
    return not (dataclasses.is_dataclass(cls) and function.__code__.co_filename == "<string>")


def may_change(cls: type) -> bool:
    """Test for a class that a program may change: none of Python's or PyTorch's."""
    return is_replaceable(cls) and not is_known(cls.__module__)


def is_known(module: str | None) -> bool:
    """Test for a module of Python's or PyTorch's, whose classes answer the same in each call."""
    return (module or "").partition(".")[0] in _KNOWN


_KNOWN: Collection[str] = {*sys.stdlib_module_names, "torch", "numpy"} - {"__main__"}


def _is_repr(variable: Any) -> bool:
    """Test for an object of the program's whose text is its ``__repr__``."""
    from tj_torch.torch_private.dynamo import user_defined

    kind: Any = type(getattr(variable, "value", None))
    plain = type(variable) is user_defined.UserDefinedObjectVariable
    return plain and kind.__str__ is object.__str__ and is_own(kind, "__repr__")


def _has_items(variable: Any) -> bool:
    """Test for a class with a ``__class_getitem__`` of the program's."""
    from tj_torch.torch_private.dynamo import user_defined

    of_class = isinstance(variable, user_defined.UserDefinedClassVariable)
    return of_class and is_own(variable.value, "__class_getitem__")


def _is_made_tuple(variable: Any) -> bool:
    """Test for a tuple that the program makes, of a class that says what its items are.

    The guards of another tuple would call the method themselves.
    """
    from tj_torch.torch_private.dynamo import user_defined

    variable = variable.realize()
    if not isinstance(variable, user_defined.UserDefinedObjectVariable) or variable.source:
        return False
    kind: Any = type(variable.value)
    return issubclass(kind, tuple) and is_own(kind, "__getitem__")


def _name(value: Any) -> str:
    return str((value if isinstance(value, type) else type(value)).__qualname__)
