"""Guards that Dynamo leaves out: of annotations, signatures, limits of Python, and ranges.

The qualified name of a function that the program does not make is for Dynamo the descriptor of the
class, which texts and `functools.wraps` then take. The numbers of a range are symbols for it,
although it computes with them as constants. Globals of Python's own modules are those of
`tj_torch.capture.dynamo.globals`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.own_methods import is_known
from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["NAMES", "correct"]

LIMITS = ("getrecursionlimit", "get_int_max_str_digits", "set_int_max_str_digits")
"""Functions of `sys` that Dynamo calls while it captures."""

NAMES = frozenset({*LIMITS, "__annotations__", "__qualname__", "default", "parameters", "range"})
"""Names in functions that may read one of these."""


def correct(stack: ExitStack) -> None:
    """Guard all of these but `LIMITS`, and break the graph where a program calls one of them."""
    from tj_torch.torch_private.dynamo import (
        PolyfilledFunctionVariable,
        VariableBuilder,
        functions,
    )

    for name in ("fn_var_getattr", "fn_getattro_impl"):  # the second from 2.14 on
        if has(functions, name):
            replace(stack, functions, name, _attributes)
    if has(function := functions.BaseUserFunctionVariable, "tp_getset"):
        for name, attribute in _OF_CODE.items():
            replace(stack, function, name, _of_function(attribute))
    if has(VariableBuilder, "wrap_user_defined"):
        replace(stack, VariableBuilder, "wrap_user_defined", _signatures)
    replace(stack, VariableBuilder, "wrap_slice_range", _ranges)
    replace(stack, PolyfilledFunctionVariable, "call_function", _limits, inherited=True)


def _attributes(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import AttrSource, ConstantVariable, VariableBuilder

    def read(tx: Any, fn: Any, source: Any, name: str) -> Any:
        if name == "__qualname__" and isinstance(fn, FunctionType):
            if source is None:
                return ConstantVariable.create(fn.__qualname__)
        # Of the annotations of all parameters, `inspect.signature` looks at few.
        elif name != "__annotations__" or source is None or _inspects(tx):
            return original(tx, fn, source, name)
        return VariableBuilder(tx, AttrSource(source, name))(getattr(fn, name))

    return read


_OF_CODE = {"get_name": "__name__", "get_qualname": "__qualname__", "get_doc": "__doc__"}
"""Attributes of functions that Dynamo reads from the code from 2.15 on, by methods."""


def _of_function(attribute: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Read ``attribute`` from the function itself, which may have got another value."""

    def of_function(original: Callable[..., Any]) -> Callable[..., Any]:
        def get(self: Any) -> Any:
            function = getattr(self, "fn", None)
            if isinstance(function, FunctionType):
                return getattr(function, attribute)
            return original(self)

        return get

    return of_function


def _inspects(tx: Any) -> bool:
    return bool(tx.f_code.co_filename == inspect.__file__)


def _signatures(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrap_user_defined(self: Any, value: Any) -> Any:
        result = original(self, value)
        if isinstance(value, inspect.Signature | inspect.Parameter):
            result.source = self.source  # and not one that says that nothing is guarded
        return result

    return wrap_user_defined


def _ranges(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import (
        AttrSource,
        ConstantVariable,
        GuardBuilder,
        RangeVariable,
        install_guard,
    )

    def wrap_slice_range(self: Any, value: Any) -> Any:
        if not isinstance(value, range):
            return original(self, value)
        self.install_guards(GuardBuilder.TYPE_MATCH)
        for name in ("start", "stop", "step"):
            source = AttrSource(self.get_source(), name)
            install_guard(source.make_guard(GuardBuilder.EQUALS_MATCH))
        items = map(ConstantVariable.create, (value.start, value.stop, value.step))
        return RangeVariable([*items], source=self.source)

    return wrap_slice_range


def _limits(original: Callable[..., Any]) -> Callable[..., Any]:
    limits = [getattr(sys, name) for name in LIMITS if hasattr(sys, name)]  # two are of 3.11

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn in limits and not is_known(tx.f_globals.get("__name__")):
            stop(f"sys.{self.fn.__name__} answers differently in each call")
        return original(self, tx, args, kwargs)

    return call_function
