"""Functions that cache results (`functools.lru_cache`), whose cache Dynamo ignores.

A call with constants is captured as it would run, and then made: the program gets what the cache
has, and guards it. Other calls break the graph, unless the result is of numbers alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from tj_torch.capture.dynamo.globals import may_change
from tj_torch.capture.dynamo.patches import leave_program, replace_instruction, stop
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct", "from_cache", "see_identity"]


def correct(stack: ExitStack) -> None:
    """Take results from the caches, or break the graph at calls of such functions."""
    from tj_torch.torch_private.dynamo import SideEffects, WrapperUserFunctionVariable

    inside: list[str] = []
    read: list[str] = []  # data that such functions have read, of the whole call

    _note_reads(stack, inside, read)
    replace(stack, WrapperUserFunctionVariable, "call_function", partial(_calling, inside, read))
    replace(stack, SideEffects, "check_allowed_side_effect", partial(_changing, inside))


def _calling(
    inside: list[str], read: list[str], original: Callable[..., Any]
) -> Callable[..., Any]:
    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        name = _remembering(self)
        if name is None:
            return original(self, tx, args, kwargs)
        given = [*self.self_args(), *args]
        if not all(map(_is_known, (*given, *kwargs.values()))):
            stop(f"{name} remembers results for what is no constant")
        nodes = len(tx.output.graph.nodes)
        if not inside:
            read.clear()
        inside.append(name)
        try:
            result = original(self, tx, args, kwargs)
        finally:
            inside.pop()
        if not all(map(_is_of_numbers, [*tx.output.graph.nodes][nodes:])):
            stop(f"{name} remembers results, and calls PyTorch")
        # For some sizes, the cache may have what was computed before such data changed.
        if read and any(map(_has_symbols, (*given, *kwargs.values()))):
            stop(f"{name} remembers results, and depends on {read[0]}")
        return _remembered(tx, self.wrapper_obj, given, kwargs, result)

    return call_function


def _changing(inside: list[str], original: Callable[..., Any]) -> Callable[..., Any]:
    def check_allowed_side_effect(self: Any, item: Any) -> Any:
        # An object of the caller's: a cached result would not change it a second time.
        if inside and item.source is not None:
            stop(f"{inside[-1]} remembers results, and has side effects")
        return original(self, item)

    return check_allowed_side_effect


def _note_reads(stack: ExitStack, inside: list[str], read: list[str]) -> None:
    """Add to ``read`` the data that is read by name ``inside`` of such a function."""

    def loading_global(original: Callable[..., Any]) -> Callable[..., Any]:
        def instruction(self: Any, inst: Any) -> None:
            if inside and may_change(self.f_globals.get(inst.argval, type)):
                read.append(inst.argval)
            original(self, inst)

        return instruction

    def loading_cell(original: Callable[..., Any]) -> Callable[..., Any]:
        def instruction(self: Any, inst: Any) -> None:
            original(self, inst)
            if inside and _is_data(self.stack[-1]):
                read.append(inst.argval)

        return instruction

    replace_instruction(stack, "LOAD_GLOBAL", loading_global)
    replace_instruction(stack, "LOAD_DEREF", loading_cell)


def _remembering(variable: Any) -> str | None:
    """Name of a user's function that caches results; None for any other."""
    wrapper = variable.wrapper_obj
    # `functools.lru_cache` and `functools.cache` set it; other wrappers keep nothing.
    if not hasattr(wrapper, "cache_info"):
        return None
    module = getattr(wrapper, "__module__", None) or ""
    return None if module.partition(".")[0] == "torch" else str(wrapper.__qualname__)


def _remembered(
    tx: Any, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Any:
    """The result of ``function`` from its cache, where a call that was captured gave ``result``.

    With constants, it is called, and a guard calls it before each run of the program. A result
    that depends on sizes has the values of the cache, and stays in the program.
    """
    call = partial(
        function, *map(_value, args), **{name: _value(item) for name, item in kwargs.items()}
    )
    try:
        real = call()
    except Exception as error:  # whatever the user's function raises; Python will raise it
        stop(f"{function.__qualname__} remembers results, and raises {type(error).__name__}")
    if any(map(_has_symbols, (*args, *kwargs.values()))):
        inner = _inner(result)
        if inner is None or not _same(_value(inner), real):
            stop(f"{function.__qualname__} remembers what may change")
        return inner
    if _is_constant(result) and _same(result.as_python_constant(), real):
        return result
    return from_cache(tx, call, real)


_CALLS: WeakKeyDictionary[Any, dict[Any, tuple[str, Any]]] = WeakKeyDictionary()
"""The globals that hold calls, with their results, by capture, and by function and arguments."""


def _is_data(variable: Any) -> bool:
    """Test for a value that was there before the call, a function or a class aside."""
    from tj_torch.torch_private.dynamo import UserFunctionVariable

    variable = variable.realize()
    if variable.source is None or isinstance(variable, UserFunctionVariable):
        return False
    return not (variable.is_python_constant() and isinstance(variable.as_python_constant(), type))


def from_cache(tx: Any, call: partial[Any], value: Any) -> Any:
    """The variable of ``value``, which ``call`` returns in each call of the program."""
    from tj_torch.torch_private.dynamo import (
        CallFunctionNoArgsSource,
        GlobalSource,
        VariableBuilder,
    )

    named = tuple(call.keywords.items())
    key = call.func, call.args, named, tuple(map(type, (*call.args, *call.keywords.values())))
    calls = _CALLS.setdefault(tx.output.root_tx, {})
    if key not in calls:
        calls[key] = tx.output.install_global_by_id("___remembered", call), value
    known, before = calls[key]
    if before is not value:
        leave_program(f"{call.func.__qualname__} has forgotten what it returned before")
    return VariableBuilder(tx, CallFunctionNoArgsSource(GlobalSource(known)))(value)


def _is_from_cache(variable: Any) -> bool:
    from tj_torch.torch_private.dynamo import CallFunctionNoArgsSource, UserDefinedObjectVariable

    if not isinstance(variable, UserDefinedObjectVariable):
        return False
    return isinstance(variable.source, CallFunctionNoArgsSource)


def _is_known(variable: Any) -> bool:
    """Test for an argument that a cache takes for the same in each call: no object of a caller's.

    These are constants, sizes, tuples of them, and objects that another cache has.
    """
    from tj_torch.torch_private.dynamo import SymNodeVariable, TupleVariable

    variable = variable.realize()
    if isinstance(variable, SymNodeVariable):
        return _value(variable) is not None
    if isinstance(variable, TupleVariable) and variable.python_type() in (tuple, torch.Size):
        return all(map(_is_known, variable.items))
    return _is_constant(variable) or _is_from_cache(variable)


def _has_symbols(variable: Any) -> bool:
    from tj_torch.torch_private.dynamo import SymNodeVariable, TupleVariable

    variable = variable.realize()
    if isinstance(variable, TupleVariable):
        return any(map(_has_symbols, variable.items))
    return isinstance(variable, SymNodeVariable)


def _value(variable: Any) -> Any:
    """The value of an argument or a result in the call that is captured."""
    from tj_torch.torch_private.dynamo import BaseListVariable, ConstDictVariable, SymNodeVariable

    variable = variable.realize()
    if isinstance(variable, SymNodeVariable):
        return variable.sym_num.node.hint  # None of a number that depends on data
    if isinstance(variable, ConstDictVariable):
        return {k.vt.as_python_constant(): _value(v) for k, v in variable.items.items()}
    if isinstance(variable, BaseListVariable):
        return variable.python_type()(map(_value, variable.items))
    return variable.value if _is_from_cache(variable) else variable.as_python_constant()


def _inner(variable: Any) -> Any:
    """``variable``, a tree of numbers that may not leave the program; None if it is another."""
    from tj_torch.torch_private.dynamo import BaseListVariable, ConstDictVariable, SymNodeVariable

    variable = variable.realize()
    if isinstance(variable, SymNodeVariable) or _is_constant(variable):
        return variable
    items: Any
    if isinstance(variable, BaseListVariable) and variable.python_type() in (list, tuple):
        items = [_inner(item) for item in variable.items]
        missing = None in items
    elif isinstance(variable, ConstDictVariable) and variable.python_type() is dict:
        items = {key: _inner(item) for key, item in variable.items.items()}
        missing = None in items.values()
    else:
        return None
    kind: Any = type(variable)
    arguments = {**vars(variable), "items": items, "mutation_type": None}
    return None if missing else _inner_kind(kind)(**arguments)


@functools.cache
def _inner_kind(cls: Any) -> Any:
    """A class like ``cls``, of containers that Python code, and so the caller, must not see.

    The cache has others, which are the same ones in each call.
    """

    def reconstruct(self: Any, codegen: Any) -> None:
        leave_program("what a function remembers is used outside of the graph")

    return type(cls.__name__, (cls, _Inner), {"reconstruct": reconstruct})


class _Inner:
    """Mark of such a class."""


def see_identity(left: Any, right: Any) -> None:
    """Leave the program if the identity of what a cache has as another object is asked for."""
    inner = isinstance(left, _Inner) or isinstance(right, _Inner)
    if inner and not (_is_constant(left) or _is_constant(right)):
        leave_program("the identity of what a function remembers")


def _is_constant(variable: Any) -> bool:
    """Test for a constant that is no object which the program may change."""
    variable = variable.realize()
    if not variable.is_python_constant():
        return False
    return variable.mutation_type is None or _is_immutable(variable.as_python_constant())


def _is_immutable(value: Any) -> bool:
    if type(value) in (tuple, frozenset, torch.Size):
        return all(map(_is_immutable, value))
    return isinstance(value, (int, float, complex, str, bytes, type(None), type, Enum))


def _same(a: Any, b: Any) -> bool:
    """Test if ``a`` and ``b`` are equal and of the same types: for a cache, ``1`` is ``1.0``."""
    return repr(a) == repr(b) and bool(a == b)


def _is_of_numbers(node: Any) -> bool:
    """Test for a node of a graph that computes a number from sizes."""
    return isinstance(node.meta.get("example_value"), (int, float, torch.SymInt, torch.SymFloat))
