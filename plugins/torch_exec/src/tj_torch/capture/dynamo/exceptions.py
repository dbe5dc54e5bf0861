"""Make texts and attributes of exceptions in captured programs those of their classes."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo import releases
from tj_torch.capture.dynamo.patches import forget_handlers, stop
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct"]


def correct(stack: ExitStack) -> None:
    """Take texts and attributes of exceptions from their classes, until ``stack`` is left.

    Dynamo joins the arguments for ``str``, though ``str(KeyError("x"))`` has quotes, ``OSError``
    the meaning of its number, and a user's class its own ``__str__``.
    """
    from tj_torch.torch_private.dynamo import ExceptionVariable, user_defined

    users = user_defined.UserDefinedExceptionObjectVariable
    _texts(stack, ExceptionVariable, users)
    _constructors(stack, ExceptionVariable, users)
    releases.attributes(stack, ExceptionVariable, _of_member, subclasses=True)
    releases.errors_of_fakes(stack)


def _texts(stack: ExitStack, own: Any, users: Any) -> None:
    """Correct ``str`` and ``repr`` of exceptions; ``own`` and ``users`` are Dynamo's classes."""
    from tj_torch.torch_private.dynamo import BuiltinVariable

    def of_call(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_str(self: Any, tx: Any, arg: Any) -> Any:
            plain: Callable[[], Any] = lambda: original(self, tx, arg)  # noqa: E731
            return _text(tx, arg, plain) if isinstance(arg, own | users) else plain()

        return call_str

    forget_handlers(stack, str)
    if has(own, "tp_str_impl"):  # from 2.14 on, where str() and f-strings use a slot
        for variable in (own, users):
            replace(stack, variable, "tp_str_impl", _slot, inherited=True)
    else:
        replace(stack, BuiltinVariable, "call_str", of_call)
    for name in ("repr_impl", "tp_repr_impl"):  # without either, repr breaks the graph
        if has(own, name):
            replace(stack, own, name, _repr)
    for variable in (own, users):
        replace(stack, variable, "call_method", _method, inherited=True)


def _slot(original: Callable[..., Any]) -> Callable[..., Any]:
    def tp_str_impl(self: Any, tx: Any) -> Any:
        return _text(tx, self, lambda: original(self, tx))

    return tp_str_impl


def _repr(original: Callable[..., Any]) -> Callable[..., Any]:
    def repr_impl(self: Any, tx: Any) -> Any:
        _constants(self)
        return original(self, tx)

    return repr_impl


def _method(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import BuiltinVariable

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        # A `__str__` of the program's is traced; those of builtin classes are in C.
        defined = isinstance(getattr(self.python_type(), name, None), FunctionType)
        if name == "__str__" and not args and not defined:
            return BuiltinVariable(str).call_function(tx, [self], {})
        return original(self, tx, name, args, kwargs)

    return call_method


def _text(tx: Any, exception: Any, plain: Callable[[], Any]) -> Any:
    """Variable for ``str`` of an exception; ``plain`` makes Dynamo's own."""
    from tj_torch.torch_private.dynamo import VariableTracker

    cls = exception.python_type()
    text: Any = cls.__str__
    if isinstance(text, FunctionType):
        return exception.call_method(tx, "__str__", [], {})
    if text is BaseException.__str__:
        return plain()
    if cls.__module__ != "builtins":  # a constructor of the user's may have side effects
        stop(f"the text of a {cls.__name__}")
    return VariableTracker.build(tx, str(cls(*_constants(exception))))


def _constructors(stack: ExitStack, own: Any, users: Any) -> None:
    """Keep the arguments that an exception is made with."""
    from tj_torch.torch_private.dynamo import SideEffects

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, exc_type: Any, args: Any, *more: Any, **kwargs: Any) -> None:
            if exc_type is OSError and len(args) > 1:  # makes a FileNotFoundError, for instance
                stop("an OSError by number")
            original(self, exc_type, args, *more, **kwargs)

        return init

    def constructed(original: Callable[..., Any]) -> Callable[..., Any]:
        def track(self: Any, base: Any, cls: Any, args: Any, **kwargs: Any) -> Any:
            made: Any = original(self, base, cls, args, **kwargs)
            if isinstance(made, users) and args and not made.args:
                # BaseException.__new__ sets `args`, even if the class does not pass them on.
                value: Any = made.value
                made.exc_vt.args = value.args = list(args)
            return made

        return track

    replace(stack, own, "__init__", made)
    replace(stack, SideEffects, "track_new_user_defined_object", constructed)


def _of_member(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import ConstantVariable, TupleVariable

    def attribute(self: Any, tx: Any, name: str) -> Any:
        if name in _SET_BY_PYTHON:
            stop(f"{name} of an exception")
        if name == "args":
            return TupleVariable(list(self.args))  # some versions of Dynamo have a list
        if name == "value" and issubclass(self.python_type(), StopIteration):
            return self.args[0] if self.args else ConstantVariable.create(None)
        return original(self, tx, name)

    return attribute


_SET_BY_PYTHON = frozenset({"name", "obj", "path"})
"""Attributes of a NameError, AttributeError or ImportError, which Dynamo does not set."""


def _constants(exception: Any) -> list[Any]:
    """Arguments of the exception of a variable.

    :raises Unsupported: if one is no constant.
    """
    if not all(arg.is_python_constant() for arg in exception.args):
        stop(f"the text of a {exception.python_type().__name__} with other values than constants")
    return [arg.as_python_constant() for arg in exception.args]
