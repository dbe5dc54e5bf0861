"""Give symbolic numbers in Dynamo Python's semantics: texts, rounding, ``divmod``, ``~n``.

Dynamo formats the text of a number instead of the number, rounds to digits that it does not look
at, and takes an operator that it has not written for a mistake of the program's. It asks the class
``int`` for what ``int.__add__(n, 1)`` asks of ``n``, and gets ``NotImplemented``.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable
from types import MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, NoReturn

from torch.nn import functional

from tj_torch.capture.dynamo import releases
from tj_torch.capture.dynamo.patches import forget_handlers, stop
from tj_torch.ops.naming.schemas import overload
from tj_torch.ops.sizes.corrections import know_integers
from tj_torch.torch_private.eager import OpOverload, OpOverloadPacket
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct_operators", "correct_texts", "settled", "settled_truth"]


def correct_texts(stack: ExitStack) -> None:
    """Make formatting, rounding and ``divmod`` of a symbol those of its number."""
    from tj_torch.torch_private.dynamo import builtin

    forget_handlers(stack, format, round, divmod, str)
    _format_numbers(stack)
    replace(stack, builtin.BuiltinVariable, "call_function", _spelling)
    replace(stack, builtin.BuiltinVariable, "call_format", _formatting)
    replace(stack, builtin.BuiltinVariable, "call_round", _rounding)
    if has(builtin.BuiltinVariable, "call_divmod"):  # else Dynamo breaks the graph
        replace(stack, builtin.BuiltinVariable, "call_divmod", _dividing)


def correct_operators(stack: ExitStack) -> None:
    """Break the graph at operators of symbols that Dynamo computes wrongly, or takes for errors."""
    know_integers()
    releases.products_of_symbols(stack, _leave_products_with_zero)
    releases.refused_operators(stack, _leave_operators_of_symbols)
    _methods_of_numbers(stack)
    _leave_long_products(stack)
    _settle_arguments(stack)
    _sum_truths(stack)


def _sum_truths(stack: ExitStack) -> None:
    """Let ``sum([n, True])`` add 1: SymPy has no sum of a symbol and a truth value."""
    from tj_torch.torch_private.dynamo import ConstantVariable, TupleVariable, functions

    def number(variable: Any) -> Any:
        variable = variable.realize()
        truth = variable.is_python_constant() and variable.python_type() is bool
        return ConstantVariable.create(int(variable.as_python_constant())) if truth else variable

    def adding(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            if self.fn is builtins.sum and args and _has_symbols(args[0]):
                args = [TupleVariable([*map(number, args[0].items)]), *args[1:]]
            return original(self, tx, args, kwargs)

        return call_function

    replace(stack, functions.PolyfilledFunctionVariable, "call_function", adding)


def _is_symbol(variable: Any) -> bool:
    from tj_torch.torch_private.dynamo import SymNodeVariable

    return isinstance(variable, SymNodeVariable)


def settled(variable: Any) -> Any:
    """Constant for the value of a symbol in this call, which is guarded; other variables stay."""
    from tj_torch.torch_private.dynamo import ConstantVariable

    variable = variable.realize()
    return ConstantVariable.create(variable.evaluate_expr()) if _is_symbol(variable) else variable


def settled_truth(variable: Any) -> Any:
    """`settled` for the result of a comparison; numbers stay symbols."""
    variable = variable.realize()
    is_truth = _is_symbol(variable) and variable.python_type() is bool
    return settled(variable) if is_truth else variable


def _format_numbers(stack: ExitStack) -> None:
    """Make ``f"{n:>5}"`` format the number."""
    from tj_torch.torch_private.dynamo import InstructionTranslatorBase

    def formatting(original: Callable[..., Any]) -> Callable[..., Any]:
        def _format_value(self: Any, *args: Any) -> None:
            self.push(settled(self.pop()))
            original(self, *args)

        return _format_value

    replace(stack, InstructionTranslatorBase, "_format_value", formatting)


def _formatting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Correct ``format(n, ">5")``, which Dynamo takes for ``n.format(">5")``."""

    def call_format(self: Any, tx: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn is not builtins.format:
            return original(self, tx, value, *args, **kwargs)
        given = [settled(v) for v in (value, *args)]
        if not all(v.is_python_constant() for v in given):
            stop("format() of what is no constant")
        from tj_torch.torch_private.dynamo import ConstantVariable

        return ConstantVariable.create(format(*(v.as_python_constant() for v in given)))

    return call_format


_SPELLINGS = (ascii, bin, hex, oct, repr, str)
"""Functions that make the text of a number, and that Dynamo knows for constants alone."""

_REMAINDERS = (operator.mod, operator.imod)


def _spelling(original: Callable[..., Any]) -> Callable[..., Any]:
    """Spell numbers, ``hex(n)`` and ``"%d" % n``, and compute ``~n`` as ``-n - 1``."""
    from tj_torch.torch_private.dynamo import BuiltinVariable, ConstantVariable

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if kwargs or not args:
            return original(self, tx, args, kwargs)
        first, *others = args
        if self.fn in _SPELLINGS and not others:
            text = _settled_all(first)
            if text is not first.realize() and text.is_python_constant():
                return ConstantVariable.create(self.fn(text.as_python_constant()))
        elif self.fn in _REMAINDERS and first.is_python_constant() and first.python_type() is str:
            args = [first, *map(_settled_all, others)]
        elif self.fn is operator.invert and _is_integer(first):
            negative = BuiltinVariable(operator.neg).call_function(tx, [first], {})
            one = ConstantVariable.create(1)
            return BuiltinVariable(operator.sub).call_function(tx, [negative, one], {})
        return original(self, tx, args, kwargs)

    return call_function


def _is_integer(variable: Any) -> bool:
    return _is_symbol(variable.realize()) and variable.python_type() is int


def _settled_all(variable: Any) -> Any:
    """Settle a symbol, or those in a tuple, a list or a size; the same variable if it has none."""
    from tj_torch.torch_private.dynamo import ListVariable, SizeVariable, TupleVariable

    variable = variable.realize()
    if type(variable) not in (TupleVariable, ListVariable, SizeVariable):
        return settled(variable)
    items = [*map(_settled_all, variable.items)]
    same = all(new is old.realize() for new, old in zip(items, variable.items, strict=True))
    return variable if same else type(variable)(items)


def _rounding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Correct ``round(n, -1)``, whose digits Dynamo ignores."""

    def call_round(self: Any, tx: Any, value: Any, *digits: Any, **kwargs: Any) -> Any:
        if digits and not digits[0].is_constant_none():
            value, digits = settled(value), tuple(map(settled, digits))
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


def _leave_long_products(stack: ExitStack) -> None:
    """Break the graph at ``math.prod`` of a symbol and a zero, as at ``*``."""
    from tj_torch.torch_private.dynamo import BaseListVariable, TorchInGraphFunctionVariable

    def multiplying(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            if self.value is math.prod and isinstance(args[0].realize(), BaseListVariable):
                items = args[0].realize().items
                _leave_zeros([v.realize() for v in (*items, *kwargs.values())])
            return original(self, tx, args, kwargs)

        return call_function

    replace(stack, TorchInGraphFunctionVariable, "call_function", multiplying)


def _settle_arguments(stack: ExitStack) -> None:
    """Take ``is_causal=n > 1`` and ``scale_factor=n`` of functions in `functional` for constants.

    The kernels want a bool, and floats. Likewise ``padding=n`` of an operator (``torch.ops``) that
    takes a list of numbers and no symbols: PyTorch makes such a list of a number only.
    """
    from tj_torch.torch_private.dynamo import TorchInGraphFunctionVariable, TupleVariable

    def factors(variable: Any) -> Any:
        variable = variable.realize()
        if _is_symbol(variable) and variable.python_type() is int:
            return settled(variable)
        if _has_symbols(variable) and hasattr(variable, "items"):
            return TupleVariable([*map(factors, variable.items)])
        return variable

    def settling(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            name = getattr(self.value, "__name__", None)
            if name is not None and getattr(functional, name, None) is self.value:
                args = [*map(settled_truth, args)]
                kwargs = {key: settled_truth(value) for key, value in kwargs.items()}
                if name in _INTERPOLATIONS:
                    args[2:3] = map(factors, args[2:3])
                    if "scale_factor" in kwargs:
                        kwargs["scale_factor"] = factors(kwargs["scale_factor"])
            if isinstance(self.value, OpOverload | OpOverloadPacket):
                lists = _lists_of_numbers(self.value)
                args = [settled(v) if i in lists else v for i, v in enumerate(args)]
                kwargs = {key: settled(v) if key in lists else v for key, v in kwargs.items()}
            return original(self, tx, args, kwargs)

        return call_function

    replace(stack, TorchInGraphFunctionVariable, "call_function", settling)


@functools.cache
def _lists_of_numbers(op: Any) -> frozenset[int | str]:
    """Places and names of arguments that are lists of numbers, and of no symbols."""
    each = [op] if isinstance(op, OpOverload) else [getattr(op, name) for name in op.overloads()]
    lists, others = set[int | str](), set[int | str]()
    for one in each:
        for place, parameter in enumerate(overload(one._schema).parameters):
            (lists if parameter.ints else others).update((place, parameter.name))
    return frozenset(lists - others)


def _leave_zeros(factors: list[Any]) -> None:
    known = [v.as_python_constant() for v in factors if v.is_python_constant()]
    symbols = [v for v in factors if not v.is_python_constant()]
    floats = [v for v in symbols if _is_float_symbol(v)]
    zeros = [type(number) for number in known if number == 0]
    # A size may be zero, too.
    if (floats and (zeros or len(floats) < len(symbols))) or (symbols and float in zeros):
        stop("math.prod() of a number that differs between calls, and of zero")


def _is_float_symbol(variable: Any) -> bool:
    return _is_symbol(variable) and variable.python_type() is float


def _leave_operators_of_symbols(operands: tuple[Any, ...]) -> None:
    """Break the graph at an operator of symbols that Dynamo does not implement, but Python may."""
    if any(_has_symbols(v) for v in operands):
        stop("an operator of a number that differs between calls")


_INTERPOLATIONS = frozenset({"interpolate", "upsample"})

_OTHERS: dict[type, tuple[type, ...]] = {
    bool: (int, bool),
    int: (int, bool),
    float: (int, bool, float),
    complex: (int, bool, float, complex),
}
"""Types of the operands that a number's operators accept, by the type of the number."""

_SIGNS = (
    *("add", "sub", "mul", "floordiv", "truediv", "mod", "pow"),
    *("lshift", "rshift", "and_", "or_", "xor"),
)
_OPERATORS: dict[str, Callable[..., Any]] = {
    f"__{name.strip('_')}__": getattr(operator, name)
    for name in (*_SIGNS, "eq", "ne", "lt", "le", "gt", "ge")
}
_REFLECTED = {f"__r{name.strip('_')}__": getattr(operator, name) for name in _SIGNS}

_UNBOUND = WrapperDescriptorType, MethodDescriptorType


def _methods_of_numbers(stack: ExitStack) -> None:
    """Make methods of numbers that are called by name return what Python's do.

    Dynamo asks the class for ``int.__add__(n, 1)``, and takes ``n.__add__(0.5)``, which is
    ``NotImplemented``, for ``n + 0.5``.
    """
    from tj_torch.torch_private.dynamo import BuiltinVariable, ConstantVariable, SymNodeVariable

    def of_class(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            cls = self.as_python_constant()
            method = getattr(cls, name, None) if cls in _OTHERS else None
            if isinstance(method, MethodWrapperType):  # of the class itself
                _leave_method(name)
            if isinstance(method, _UNBOUND):
                return _unbound(cls, tx, name, [v.realize() for v in args], kwargs)
            return original(self, tx, name, args, kwargs)

        return call_method

    def of_symbol(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            args = [v.realize() for v in args]
            if not _are_numbers(args, _OTHERS.get(self.python_type(), ())):
                _leave_method(name)
            return original(self, tx, name, args, kwargs)

        return call_method

    replace(stack, BuiltinVariable, "call_method", of_class)
    replace(stack, ConstantVariable, "call_method", _method_of_constant)
    replace(stack, SymNodeVariable, "call_method", of_symbol)


def _method_of_constant(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        cls = type(self.value)
        if cls in _OTHERS and (name in _OPERATORS or name in _REFLECTED):
            args = [v.realize() for v in args]
            # `torch.Tensor.__radd__(1, x)` comes here, too, and raises.
            if not any(v.is_tensor() for v in args):
                # `n.__add__(m)` is `int.__add__(n, m)`, which returns NotImplemented for other
                # types.
                return _unbound(cls, tx, name, [self, *args], kwargs)
        return original(self, tx, name, args, kwargs)

    return call_method


def _unbound(cls: type, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Trace ``cls.name(*args)`` as a constant, an operator, or a method of ``args[0]``."""
    from tj_torch.torch_private.dynamo import BuiltinVariable, VariableTracker

    if kwargs or not args:
        _leave_method(name)
    if all(v.is_python_constant() for v in args):
        try:
            found = getattr(cls, name)(*(v.as_python_constant() for v in args))
        except Exception:  # Python raises it again
            _leave_method(name)
        return VariableTracker.build(tx, found)
    if not (_are_numbers(args[:1], (cls,)) and _are_numbers(args, _OTHERS[cls])):
        _leave_method(name)
    if len(args) == 1:
        return args[0].call_method(tx, name, [], {})
    if len(args) > 2 or not (name in _OPERATORS or name in _REFLECTED):
        _leave_method(name)
    sign = _OPERATORS.get(name) or _REFLECTED[name]
    return BuiltinVariable(sign).call_function(tx, args if name in _OPERATORS else args[::-1], {})


def _are_numbers(variables: list[Any], classes: tuple[type, ...]) -> bool:
    """Tell whether all are symbols or constants of one of the ``classes``."""
    return all(
        (_is_symbol(v) or v.is_python_constant()) and v.python_type() in classes for v in variables
    )


def _leave_method(name: str) -> NoReturn:
    stop(f"{name}() of a number, called by its name")


def _has_symbols(variable: Any) -> bool:
    from tj_torch.torch_private.dynamo import BaseListVariable

    if isinstance(variable, BaseListVariable):
        return any(map(_has_symbols, variable.items))
    return _is_symbol(variable)
