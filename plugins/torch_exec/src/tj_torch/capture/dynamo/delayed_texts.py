"""Texts of what may change: a tensor, a list of tensors, an object.

Dynamo formats these after the graph: ``s = f"{x}"; x.add_(1)`` has the text of the new value. It
does so before it applies what the program changed: ``o.a = 3; s = f"{o}"`` has the old one, and a
new object has no attributes yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct"]


def correct(stack: ExitStack) -> None:
    """Break the graph at a text that is formatted later, unless it is of numbers and texts."""
    from tj_torch.torch_private.dynamo import StringFormatVariable

    replace(stack, StringFormatVariable, "create", _formatting)


def _formatting(original: Any) -> Any:
    def create(cls: Any, *given: Any) -> Any:
        *_, text, args, keywords = given  # from 2.15 on, the translator comes first
        for value in (*args, *keywords.values()):
            _leave_changing(value.realize())
        _leave_failing(text, args, keywords)
        made: Callable[..., Any] = original.__get__(None, cls)
        return made(*given)

    return classmethod(create)


def _leave_changing(value: Any) -> None:
    from tj_torch.torch_private import dynamo

    if value.is_python_constant():
        return
    if isinstance(value, dynamo.TupleVariable | dynamo.SizeVariable):
        for item in value.items:
            _leave_changing(item.realize())
    elif isinstance(value, dynamo.ExceptionVariable):
        for argument in value.args:
            _leave_changing(argument.realize())
    elif not isinstance(value, dynamo.SymNodeVariable | dynamo.StringFormatVariable):
        stop(f"the text of {_kind(value)}, which may change")


def _leave_failing(text: str, args: Any, keywords: Any) -> None:
    """Break the graph where formatting raises: after the graph, no ``except`` would catch that."""
    try:
        text.format(*map(_example, args), **{k: _example(v) for k, v in keywords.items()})
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        stop(f"a text that cannot be formatted: {error}")


def _example(value: Any) -> Any:
    """A value that formats like ``value``, whose number or text is not known yet."""
    from tj_torch.torch_private import dynamo

    value = value.realize()
    if value.is_python_constant():
        return value.as_python_constant()
    if isinstance(value, dynamo.TupleVariable | dynamo.SizeVariable):
        return value.python_type()(map(_example, value.items))
    if isinstance(value, dynamo.ExceptionVariable):
        return Exception()
    return value.python_type()()


def _kind(value: Any) -> str:
    try:
        return f"an object of {value.python_type().__name__}"
    except NotImplementedError:
        return "an object"
