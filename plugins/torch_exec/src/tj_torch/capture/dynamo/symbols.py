"""Give symbolic numbers in Dynamo Python's semantics: formatting, rounding, ``divmod``.

Dynamo formats the text of a number instead of the number, ignores the digits to round to, and takes
an operator that it does not implement for an error of the program.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tj_torch.capture.dynamo import versions
from tj_torch.capture.dynamo.patches import forget_handlers, has, replace, stop

__all__ = ["correct_operators", "correct_texts"]


def correct_texts(stack: ExitStack) -> None:
    """Make formatting, rounding and ``divmod`` of a symbol those of its number."""
    from tj_torch.torch_private.dynamo import builtin

    forget_handlers(stack, format, round, divmod, str)
    _format_numbers(stack)
    replace(stack, builtin.BuiltinVariable, "call_format", _formatting)
    replace(stack, builtin.BuiltinVariable, "call_round", _rounding)
    if has(builtin.BuiltinVariable, "call_divmod"):  # else Dynamo breaks the graph
        replace(stack, builtin.BuiltinVariable, "call_divmod", _dividing)


def correct_operators(stack: ExitStack) -> None:
    """Break the graph at operators of symbols that Dynamo computes wrongly, or takes for errors."""
    versions.products_of_symbols(stack, _leave_products_with_zero)
    versions.refused_operators(stack, _leave_operators_of_symbols)


def _is_symbol(variable: Any) -> bool:
    from tj_torch.torch_private.dynamo import SymNodeVariable

    return isinstance(variable, SymNodeVariable)


def _settled(variable: Any) -> Any:
    """Constant for the value of a symbol in this call, which is guarded; other variables stay."""
    from tj_torch.torch_private.dynamo import ConstantVariable

    variable = variable.realize()
    return ConstantVariable.create(variable.evaluate_expr()) if _is_symbol(variable) else variable


def _format_numbers(stack: ExitStack) -> None:
    """Make ``f"{n:>5}"`` format the number."""
    from tj_torch.torch_private.dynamo import InstructionTranslatorBase

    def formatting(original: Callable[..., Any]) -> Callable[..., Any]:
        def _format_value(self: Any, *args: Any) -> None:
            self.push(_settled(self.pop()))
            original(self, *args)

        return _format_value

    replace(stack, InstructionTranslatorBase, "_format_value", formatting)


def _formatting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Correct ``format(n, ">5")``, which Dynamo takes for ``n.format(">5")``."""

    def call_format(self: Any, tx: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn is not builtins.format:
            return original(self, tx, value, *args, **kwargs)
        given = [_settled(v) for v in (value, *args)]
        if not all(v.is_python_constant() for v in given):
            stop("format() of what is no constant")
        from tj_torch.torch_private.dynamo import ConstantVariable

        return ConstantVariable.create(format(*(v.as_python_constant() for v in given)))

    return call_format


def _rounding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Correct ``round(n, -1)``, whose digits Dynamo ignores."""

    def call_round(self: Any, tx: Any, value: Any, *digits: Any, **kwargs: Any) -> Any:
        if digits and not digits[0].is_constant_none():
            value, digits = _settled(value), tuple(map(_settled, digits))
        return original(self, tx, value, *digits, **kwargs)

    return call_round


def _dividing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compute ``divmod`` of integers by ``//`` and ``%``."""

    def call_divmod(self: Any, tx: Any, a: Any, b: Any) -> Any:
        if not (_is_symbol(a) or _is_symbol(b)):
            return original(self, tx, a, b)
        if not (a.python_type() is int and b.python_type() is int):
            stop("divmod() of numbers that are no integers")
        from tj_torch.torch_private.dynamo import BuiltinVariable, TupleVariable

        parts = (operator.floordiv, operator.mod)
        return TupleVariable([BuiltinVariable(f).call_function(tx, [a, b], {}) for f in parts])

    return call_divmod


def _leave_products_with_zero(a: Any, b: Any) -> None:
    """Break the graph at ``n * 0`` of a float, which is -0.0 or NaN for some; Dynamo has 0.

    Likewise at ``n * 0.0`` of an integer, which is -0.0 for a negative one.
    """
    for number, other in ((a, b), (b, a)):
        constant = other.as_python_constant() if other.is_python_constant() else None
        zero = isinstance(constant, int | float) and constant == 0
        if zero and (_is_float_symbol(number) or (_is_symbol(number) and type(constant) is float)):
            stop("a number that differs between calls, times zero")


def _is_float_symbol(variable: Any) -> bool:
    return _is_symbol(variable) and variable.python_type() is float


def _leave_operators_of_symbols(operands: tuple[Any, ...]) -> None:
    """Break the graph at an operator of symbols that Dynamo does not implement, but Python may."""
    if any(_has_symbols(v) for v in operands):
        stop("an operator of a number that differs between calls")


def _has_symbols(variable: Any) -> bool:
    from tj_torch.torch_private.dynamo import BaseListVariable

    if isinstance(variable, BaseListVariable):
        return any(map(_has_symbols, variable.items))
    return _is_symbol(variable)
